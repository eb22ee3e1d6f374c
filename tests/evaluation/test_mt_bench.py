"""MT-Bench: two turns from a served policy, grades from a scripted judge, references where they belong."""

from __future__ import annotations

import json
import re

import pytest

from evaluation.results import figures_of, load_result
from evaluation.ultrafeedback.mt_bench import CATEGORIES, TEMPERATURES, load_judge_prompts, load_questions, read_rating
from evaluation.ultrafeedback.mt_bench_judge import MtBenchGradeConfig, grade, rating_figures
from tests.fault_server import FaultServer
from text2grad.endpoints.judging import JudgeConfig, open_judge
from text2grad.errors import InputError
from text2grad.records import load_json, save_json

GRADES = {"math": 3, "coding": 5, "writing": 8, "stem": 6}


@pytest.fixture
def files(tmp_path) -> dict[str, str]:
    names = list(GRADES)
    questions = [
        {"question_id": 81 + i, "category": name, "turns": [f"First {name} question?", f"Second {name} question?"]}
        for i, name in enumerate(names)
    ]
    references = [
        {"question_id": 81 + i, "choices": [{"turns": [f"Right one of {name}.", f"Right two of {name}."]}]}
        for i, name in enumerate(names)
    ]
    answers = [
        {"question_id": 81 + i, "choices": [{"turns": [f"Answer one, {name}.", f"Answer two, {name}."]}]}
        for i, name in enumerate(names)
    ]
    paths = {}
    for name, rows in (("questions", questions), ("references", references), ("answers", answers)):
        save_json(tmp_path / f"{name}.jsonl", rows)
        paths[name] = str(tmp_path / f"{name}.jsonl")
    return paths


def grades_by_category(body: dict) -> str:
    text = body["messages"][0]["content"]
    grade = GRADES[re.search(r"First (\w+) question", text)[1]] + ("SECOND QUESTION" in text)
    return f"It could be [[1]] or better; all in all:\n[[{grade}]]"


def graded(server: FaultServer, files: dict, output, **options) -> dict:
    config = {"system": "s", "output_path": str(output), "references": files["references"], **options}
    with open_judge(JudgeConfig(judge=f"{server.url}#m"), output) as judge:
        return grade(judge, MtBenchGradeConfig(questions=files["questions"], answers=files["answers"], **config))


def test_grades_by_turn_and_category_and_nothing_asked_twice(files, tmp_path):
    with FaultServer(grades_by_category) as server:
        result = graded(server, files, tmp_path / "r.json", plot=str(tmp_path / "radar.svg"))
        assert len(server.requests) == 2 * len(GRADES)
        graded(server, files, tmp_path / "r.json")
        assert len(server.requests) == 2 * len(GRADES)
    metrics = {name: metric["value"] for name, metric in result["metrics"].items()}
    mean = sum(GRADES.values()) / len(GRADES)
    assert metrics["score"] == mean + 0.5
    assert metrics["score_turn_1"] == mean and metrics["score_turn_2"] == mean + 1
    assert {name: metrics[f"score_{name}"] - 0.5 for name in GRADES} == GRADES
    assert metrics["judge_failures"] == 0
    assert (tmp_path / "radar.svg").read_text().startswith("<?xml")
    for name, figure in figures_of(load_result(tmp_path / "r.json")).items():
        assert figure.value() == pytest.approx(metrics[name]), name


def test_maths_coding_and_reasoning_are_graded_beside_the_reference(files, tmp_path):
    with FaultServer(grades_by_category) as server:
        graded(server, files, tmp_path / "r.json")
    for body in server.requests:
        text = body["messages"][0]["content"]
        category, second = re.search(r"First (\w+) question", text)[1], "SECOND QUESTION" in text
        with_reference = category in ("math", "coding")
        assert (f"Right one of {category}." in text) == with_reference
        assert (f"Right two of {category}." in text) == (with_reference and second)
        assert (f"Answer two, {category}." in text) == second
        assert f"Answer one, {category}." in text


def test_a_missing_reference_is_an_error_not_a_different_benchmark(files, tmp_path):
    save_json(files["references"], load_json(files["references"])[1:])
    with FaultServer(grades_by_category) as server:
        with pytest.raises(InputError, match=r"no reference answer to question 81 \(math\)"):
            graded(server, files, tmp_path / "r.json")
        with pytest.raises(InputError, match="--references is missing"):
            graded(server, files, tmp_path / "r.json", references=None)
        result = graded(server, files, tmp_path / "r.json", references=None, without_references=True)
    assert result["metrics"]["score"]["n"] == 4
    assert not any("Right" in body["messages"][0]["content"] for body in server.requests)


def test_grades_of_systems_with_other_categories_are_drawn_together(files, tmp_path):
    with FaultServer(grades_by_category) as server:
        graded(server, files, tmp_path / "all.json")
        questions = [row for row in load_json(files["questions"]) if row["category"] == "writing"]
        save_json(files["questions"], questions)
        options = {"plot": str(tmp_path / "bars.svg"), "plot_with": [str(tmp_path / "all.json")]}
        graded(server, files, tmp_path / "r.json", **options)
    drawn = (tmp_path / "bars.svg").read_text()
    assert all(f">{name}<" in drawn for name in GRADES)


def test_replies_without_a_grade_are_counted_and_left_out(files, tmp_path):
    def answer(body: dict) -> str:
        return "No grade." if "SECOND QUESTION" in body["messages"][0]["content"] else grades_by_category(body)

    with FaultServer(answer) as server:
        result = graded(server, files, tmp_path / "r.json")
    assert result["metrics"]["judge_failures"]["value"] == 0.5
    assert result["metrics"]["score"]["value"] == result["metrics"]["score_turn_1"]["value"]
    assert "score_turn_2" not in result["metrics"]


def test_fastchats_own_prompts_can_be_used(files, tmp_path):
    template = "[Q]\n{question}\n[A]\n{answer}\n$5 [[rating]]"
    rows = [
        {"name": "single-v1", "system_prompt": "Be fair.", "prompt_template": template},
        {"name": "single-math-v1", "system_prompt": "", "prompt_template": template + "{ref_answer_1}"},
        {
            "name": "single-v1-multi-turn",
            "system_prompt": "",
            "prompt_template": "{question_1}{answer_1}{question_2}{answer_2}",
        },
        {
            "name": "single-math-v1-multi-turn",
            "system_prompt": "",
            "prompt_template": "{question_1}{ref_answer_1}{question_2}{ref_answer_2}{answer_1}{answer_2}",
        },
    ]
    save_json(tmp_path / "prompts.jsonl", rows)
    prompts = load_judge_prompts(str(tmp_path / "prompts.jsonl"))
    fields = {
        name: name.upper()
        for name in ("question_1", "answer_1", "question_2", "answer_2", "reference_1", "reference_2")
    }
    assert prompts[1, False].fill(fields) == "Be fair.\n\n[Q]\nQUESTION_1\n[A]\nANSWER_1\n$5 [[rating]]"
    assert prompts[2, True].fill(fields) == "QUESTION_1REFERENCE_1QUESTION_2REFERENCE_2ANSWER_1ANSWER_2"
    with FaultServer(lambda body: "[[4]]") as server:
        result = graded(server, files, tmp_path / "r.json", judge_prompts=str(tmp_path / "prompts.jsonl"))
    assert result["metrics"]["score"]["value"] == 4


@pytest.mark.parametrize("reply", ["", "Seven.", "[[0]]", "[[11]]", "[7"])
def test_what_is_no_grade_is_refused(reply):
    with pytest.raises(ValueError):
        read_rating(reply)


def test_the_last_grade_counts():
    assert read_rating("[[2]] would be harsh, so [[ 7.5 ]]")["rating"] == 7.5


def test_categories_outside_mt_benchs_are_reported_too():
    figures = rating_figures({"1": "math", "2": "cooking"}, {"1|1": 4.0, "1|2": 6.0, "2|1": 9.0})
    assert figures["score_math"].value() == 5 and figures["score_cooking"].value() == 9
    assert figures["score"].value() == pytest.approx(19 / 3)
    assert figures["judge_failures"].value() == 0.25


def test_a_served_policy_answers_the_second_turn_with_the_first_in_view(run_script, files, tmp_path):
    def answer(body: dict) -> str:
        return f"Reply {len(body['messages'])} to {body['messages'][-1]['content']}"

    with FaultServer(answer) as server:
        flags = ["--questions", files["questions"], "--model", "m", "--base_url", server.url, "--system", "s"]
        result = run_script(
            "evaluation/ultrafeedback/mt_bench_answers.py", *flags, "--output_path", tmp_path / "a.jsonl"
        )
        assert result.returncode == 0, result.stderr
        asked = len(server.requests)
        again = run_script(
            "evaluation/ultrafeedback/mt_bench_answers.py", *flags, "--output_path", tmp_path / "a.jsonl"
        )
        assert again.returncode == 0 and len(server.requests) == asked == 2 * len(GRADES)
    for row, name in zip(load_json(tmp_path / "a.jsonl"), GRADES, strict=True):
        first, second = f"First {name} question?", f"Second {name} question?"
        assert row["choices"][0]["turns"] == [f"Reply 1 to {first}", f"Reply 3 to {second}"]
        bodies = [body for body in server.requests if body["messages"][0]["content"] == first]
        assert {body["temperature"] for body in bodies} == {TEMPERATURES.get(name, 0.0)}
        assert bodies[1]["messages"][1] == {"role": "assistant", "content": f"Reply 1 to {first}"}


def test_fastchats_question_file_is_read(shared_data):
    questions = load_questions(str(shared_data / "mt_bench" / "question.jsonl"))
    assert len(questions) == 80
    assert {question["category"] for question in questions.values()} == set(CATEGORIES)


def test_other_files_are_refused(tmp_path):
    (tmp_path / "q.jsonl").write_text(json.dumps({"question_id": 1, "turns": ["one"]}) + "\n")
    with pytest.raises(InputError, match=r"q\.jsonl: line 1 lacks"):
        load_questions(str(tmp_path / "q.jsonl"))

"""Every spelling of a flag of stage 3 that is documented or was published parses to the same setting."""

import pytest

from nl_gradient_policy_optimization.config import PolicyConfig
from text2grad.configs import parse


@pytest.mark.parametrize(("alias", "name"), [("max_response_tokens", "max_new_tokens"), ("save_steps", "save_every")])
def test_a_former_spelling_sets_the_same_setting_on_the_command_line_and_in_yaml(tmp_path, alias, name):
    assert getattr(parse(PolicyConfig, args=[f"--{alias}", "7"]), name) == 7
    (tmp_path / "policy.yaml").write_text(f"{alias}: 7\n")
    assert getattr(parse(PolicyConfig, args=["--config", str(tmp_path / "policy.yaml")]), name) == 7

"""Studies of the method and its costs; each prints its tables, and its page says what came out."""

EARLIER = {
    "page": ("", "is no setting any more: tables are printed; leave it out"),
    "already_listed": ([], "is no setting any more; leave it out"),
    "examine_pairs": (0, "is no setting any more; leave it out"),
    "reward_pairs": (1000, "is of a finished study; benchmarks/learnt_critics.md names the commit that has it"),
    "reward_model_steps": (3000, "is of a finished study; benchmarks/learnt_critics.md names the commit that has it"),
    "scalar_model": ("", "is no setting any more; leave it out"),
    "refresh_data": ("", "is no setting any more; benchmarks/earlier_studies.md names the commit that has it"),
    "learnt_critics": ("", "is of a finished study; benchmarks/earlier_studies.md names the commit that has it"),
}
"""Settings of earlier versions (see ``text2grad.configs``)."""

"""KodCode: whether the programs pass their tests."""

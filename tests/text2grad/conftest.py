"""The sandbox that users get."""

import pytest

from text2grad.sandbox import Sandbox


@pytest.fixture(scope="session")
def box() -> Sandbox:
    """The backend that users get, for what does not depend on it."""
    return Sandbox(seconds=60.0)

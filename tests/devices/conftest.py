"""A machine that stands in for a GPU."""

import pytest

from .cuda_stand_in import install


@pytest.fixture
def machine(monkeypatch):
    return install(monkeypatch)

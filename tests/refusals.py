"""Calls that are refused, a line each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def refuses(
    words: str,
    call: Callable[..., Any],
    *args: Any,
    error: type[BaseException] = ValueError,
    **named: Any,
) -> None:
    """The call with these arguments raises the error, in a message that matches the words."""
    with pytest.raises(error, match=words):
        call(*args, **named)

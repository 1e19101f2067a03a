"""The one `njit` of the simulator: compiled once, kept on disk, and never kept too long.

Numba writes its compiled code beside the module. Two things can go wrong there, and both are dealt
with before the first function is compiled:

- The folder is read-only (a package installed by root, an image). The code then goes to a cache
  folder of the user's own, or, where there is none, to a temporary one. A `NUMBA_CACHE_DIR` that
  the user has set is left as it is.
- The code is stale. Numba looks only at the file of the function itself, so an edit to a function
  that is *called from* another module would leave the old machine code in use. Hence the cache is
  bound to a fingerprint of all the kernels' sources: when it changes, the old code is dropped.

Checked code (`LLMSCALE_CHECKED=1`, see `llmscale_env.sim.checked_kernels`) never lies beside the other.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, MutableMapping
from pathlib import Path
from typing import Any, TypeVar, overload

from llmscale_env.sim.checked_kernels import CHECKED, rewritten, teach_numba

logger = logging.getLogger(__name__)

_KERNELS = Path(__file__).resolve().parent
_FINGERPRINT_NAME = "kernels.fingerprint"


def is_writable(folder: Path) -> bool:
    """Whether a file can be made in `folder`, which is created if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def fingerprint(kernels: Path) -> str:
    """Hash of every Python source below `kernels`, names included (hexadecimal, 16 characters)."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(kernels.rglob("*.py")):
        source = path.read_bytes()
        digest.update(f"{path.relative_to(kernels).as_posix()} {len(source)}\n".encode())
        digest.update(source)
    return digest.hexdigest()


def _source_folders(kernels: Path) -> list[Path]:
    return sorted({path.parent for path in kernels.rglob("*.py")})


def _drop_stale(kernels: Path, current: str) -> None:
    """Delete Numba's files in the `__pycache__` folders of `kernels` unless made from `current`.

    Safe with many processes at once: the note is replaced in one step, and Numba compiles anew when
    a file of its cache is missing.
    """
    note = kernels / "__pycache__" / _FINGERPRINT_NAME
    try:
        if note.read_text() == current:
            return
    except (OSError, UnicodeDecodeError):
        pass  # no note yet, or an unreadable one: what lies there may be from any version
    for folder in _source_folders(kernels):
        for path in (folder / "__pycache__").glob("*.nb[ic]"):
            path.unlink(missing_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=note.parent, delete=False) as file:
        file.write(current)
    os.replace(file.name, note)


def _is_private(folder: Path) -> bool:
    """Whether only we can write in `folder`: cached code is run, so nobody else may leave any."""
    if not hasattr(os, "getuid"):
        return True
    info = folder.lstat()
    return (
        stat.S_ISDIR(info.st_mode)
        and info.st_uid == os.getuid()
        and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


def _fallback_folders(current: str) -> Iterable[Path]:
    from platformdirs import user_cache_path

    yield user_cache_path("llmscale", appauthor=False) / f"kernels-{current}"
    user = os.getuid() if hasattr(os, "getuid") else "user"
    shared = Path(tempfile.gettempdir()) / f"llmscale-{user}-kernels-{current}"
    try:
        shared.mkdir(mode=0o700, exist_ok=True)
        if _is_private(shared):
            yield shared
    except OSError:
        pass  # the name is taken by something else; a folder of our own is always free
    yield Path(tempfile.mkdtemp(prefix="llmscale-kernels-"))


def prepare_cache(
    kernels: Path = _KERNELS,
    environ: MutableMapping[str, str] = os.environ,
    writable: Callable[[Path], bool] = is_writable,
) -> Path | None:
    """Decide where compiled code is kept, and see to it that none of it is stale.

    Args:
        kernels: folder of the modules that are compiled.
        environ: where `NUMBA_CACHE_DIR` is read and, for a read-only `kernels`, set.
        writable: the test whether a folder can be written (replaced in tests: root can write
            anywhere).

    Returns:
        The folder that was chosen in place of the one beside the modules, or None if the code is
        kept there, or where the user has said.

    Raises:
        OSError: not even a temporary folder can be made.
    """
    folders = _source_folders(kernels)
    if environ.get("NUMBA_CACHE_DIR") or not folders:
        return None  # without sources (in a zip file) Numba finds a place by itself
    current = fingerprint(kernels) + ("-checked" if CHECKED else "")
    if not CHECKED and all(writable(folder / "__pycache__") for folder in folders):
        _drop_stale(kernels, current)
        return None
    chosen = next(folder for folder in _fallback_folders(current) if writable(folder))
    environ["NUMBA_CACHE_DIR"] = str(chosen)
    logger.info("%s is read-only: compiled code is kept in %s", kernels, chosen)
    return chosen


_chosen = prepare_cache()

import numba  # noqa: E402  (it reads NUMBA_CACHE_DIR when it is imported)

if _chosen is not None:
    # Numba may have been imported before us. Its settings are not declared, so types cannot know.
    numba.config.CACHE_DIR = str(_chosen)  # type: ignore[attr-defined]

from numba.core import event  # noqa: E402

COMPILING = "llmscale: compiling once, up to two minutes"


class _TellsOfCompiling(event.Listener):
    """Says on standard error, once in a process, that a kernel of ours is not in the cache yet.

    Without a word the first step of an environment would seem to hang.
    """

    told = False

    def on_start(self, event: event.Event) -> None:
        kernel = event.data["dispatcher"].py_func
        if not self.told and (kernel.__module__ or "").startswith(f"{__package__}."):
            self.told = True
            print(COMPILING, file=sys.stderr, flush=True)

    def on_end(self, event: event.Event) -> None:
        """Nothing: what comes next is the answer to the call."""


event.register("numba:compile", _TellsOfCompiling())
if CHECKED:
    teach_numba()

F = TypeVar("F", bound=Callable[..., Any])


@overload
def njit(function: F, /) -> F: ...
@overload
def njit(**options: Any) -> Callable[[F], F]: ...
def njit(function: F | None = None, /, **options: Any) -> F | Callable[[F], F]:
    """`numba.njit` with `cache=True` unless `options` say otherwise.

    Divisors are not looked at, unless the code is checked: no kernel divides by zero, and a test at every
    division cost some hundredths of the run time.

    What runs at every event and is called from one place or two has `forceinline=True`: a call costs some
    nanoseconds, and what it reads of the state is read again. Elsewhere the compiler decides.

    Only what advances episodes releases the GIL (`nogil=True`); all else ends before another thread runs.

    The result is typed as the function that was given, so calls of compiled code are type-checked.

    Raises:
        RuntimeError: (from Numba, where the function is defined) `NUMBA_CACHE_DIR` names a folder
            that cannot be written and no other place for the cache is left.
    """
    errors = "python" if CHECKED else "numpy"
    fixed = {"cache": True, "boundscheck": CHECKED, "error_model": errors}
    decorate = numba.njit(**{**fixed, **options})

    def made(given: Any) -> Any:
        return _widen(_outlive(decorate(rewritten(given) if CHECKED else given)))

    return made if function is None else made(function)


def _outlive(dispatcher: Any) -> Any:
    """Compile anew what cannot be read: Numba lets a file that was cut off end the process's call."""
    cache = dispatcher._cache
    load = cache.load_overload

    def load_overload(*args: Any) -> Any:
        try:
            return load(*args)
        except Exception as error:  # whatever unpickling bytes of any kind may raise
            logger.warning("%s: compiled code is damaged, made anew (%r)", cache.cache_path, error)
            cache.flush()
            return None

    cache.load_overload = load_overload
    return dispatcher


def _widen(dispatcher: Any) -> Any:
    """Compile for `int64` whatever integer a kernel passes: a literal, an `int8`, an `int32`.

    Numba would otherwise compile a function anew for each constant and each width that it is called with,
    which doubled the time of the first call.
    """
    from numba import types

    original = dispatcher.get_call_template

    def wide(given: Any) -> Any:
        plain = types.unliteral(given)
        signed = isinstance(plain, types.Integer) and getattr(plain, "signed", False)
        return types.int64 if signed else plain

    def get_call_template(args: Any, kws: Any) -> Any:
        return original(tuple(wide(a) for a in args), {k: wide(v) for k, v in dict(kws).items()})

    dispatcher.get_call_template = get_call_template
    return dispatcher

"""Where compiled code is kept, when it is dropped, and what the kernels' decorator adds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from llmscale_env.sim import checked_kernels as checked
from llmscale_env.sim import jit

ROOT = Path(__file__).resolve().parents[1]

KERNELS = {
    "callee.py": (
        "from llmscale_env.sim.jit import njit\n\n@njit\ndef callee(x):\n    return x + 1\n"
    ),
    "caller.py": (
        "from llmscale_env.sim.callee import callee\nfrom llmscale_env.sim.jit import njit\n\n"
        "@njit\ndef caller(x):\n    return 10 * callee(x)\n"
    ),
}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A small copy of the package, with two kernels of which one calls the other."""
    package = tmp_path / "site" / "llmscale_env"
    sim = package / "sim"
    sim.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (sim / "__init__.py").write_text("")
    shutil.copy(jit.__file__, sim)
    shutil.copy(checked.__file__, sim)
    for name, text in KERNELS.items():
        (sim / name).write_text(text)
    return package.parent


def run(site: Path, **environ: str) -> str:
    """Run the calling kernel of a copy in a process of its own; return what it and the log say."""
    code = (
        "import logging; logging.basicConfig(level=logging.INFO, format='%(message)s');"
        "from llmscale_env.sim.caller import caller; print(caller(1));"
        "print('hits', sum(caller.stats.cache_hits.values()))"
    )
    inherited = {key: value for key, value in os.environ.items() if key != "NUMBA_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-B", "-W", "error", "-c", code],
        cwd=site,
        env={**inherited, "OMP_NUM_THREADS": "1", **environ},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def make_read_only(sim: Path) -> None:
    """Make `__pycache__` impossible, for root too (whom permission bits do not bind)."""
    (sim / "__pycache__").write_text("a file where the folder should be")


def compiled_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.nbc"))


def test_code_is_kept_beside_the_module_and_dropped_when_any_kernel_changes(copy: Path):
    said = run(copy)
    assert "20\nhits 0" in said
    assert said.count(jit.COMPILING) == 1
    assert compiled_files(copy / "llmscale_env" / "sim" / "__pycache__")
    said = run(copy)
    assert "20\nhits 1" in said
    assert jit.COMPILING not in said  # code from the cache needs no word
    callee = copy / "llmscale_env" / "sim" / "callee.py"
    callee.write_text(callee.read_text().replace("x + 1", "x + 2"))
    # Numba by itself would answer 20 here: the file of `caller` has not changed.
    assert "30\nhits 0" in run(copy)


def test_damaged_compiled_code_is_made_anew(copy: Path):
    run(copy)
    for kind in ("nbi", "nbc"):
        files = list((copy / "llmscale_env" / "sim" / "__pycache__").glob(f"*.{kind}"))
        assert len(files) >= 2
        for k, file in enumerate(files):
            data = file.read_bytes()
            file.write_bytes(data[: len(data) // 2] if k % 2 else b"\x00 no pickle")
        said = run(copy)
        assert "20\nhits 0" in said
        assert "compiled code is damaged" in said
        assert "20\nhits 1" in run(copy)


def test_read_only_install_uses_the_users_cache(copy: Path, tmp_path: Path):
    make_read_only(copy / "llmscale_env" / "sim")
    # platformdirs looks at HOME on macOS and at XDG_CACHE_HOME elsewhere
    environ = {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "home" / "cache")}
    said = run(copy, **environ)
    assert "20\nhits 0" in said
    assert said.count("is read-only: compiled code is kept in") == 1
    assert compiled_files(tmp_path / "home")
    assert not list(copy.rglob("*.nb[ic]"))
    assert "20\nhits 1" in run(copy, **environ)


def test_read_only_install_without_a_home_uses_a_temporary_folder(copy: Path, tmp_path: Path):
    make_read_only(copy / "llmscale_env" / "sim")
    (tmp_path / "nohome").write_text("a file")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environ = {
        "HOME": str(tmp_path / "nohome"),
        "XDG_CACHE_HOME": str(tmp_path / "nohome"),
        "TMPDIR": str(temporary),
    }
    assert "20\nhits 0" in run(copy, **environ)
    assert compiled_files(temporary)
    assert "20\nhits 1" in run(copy, **environ)


def test_the_users_own_choice_is_left_alone(copy: Path, tmp_path: Path):
    make_read_only(copy / "llmscale_env" / "sim")
    said = run(copy, NUMBA_CACHE_DIR=str(tmp_path / "mine"))
    assert "20\nhits 0" in said
    assert "read-only" not in said
    assert compiled_files(tmp_path / "mine")


def test_writable_install_changes_no_setting(copy: Path):
    environ: dict[str, str] = {}
    assert jit.prepare_cache(copy / "llmscale_env" / "sim", environ) is None
    assert environ == {}


def test_one_read_only_folder_of_kernels_is_enough(copy: Path, monkeypatch, tmp_path: Path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    sim = copy / "llmscale_env" / "sim"
    (sim / "fast").mkdir()
    (sim / "fast" / "__init__.py").write_text("")
    read_only = sim / "fast" / "__pycache__"
    environ: dict[str, str] = {}
    chosen = jit.prepare_cache(sim, environ, lambda folder: folder != read_only)
    assert chosen is not None
    assert tmp_path in chosen.parents
    assert environ == {"NUMBA_CACHE_DIR": str(chosen)}


def test_a_shared_temporary_folder_of_somebody_else_is_not_used(
    copy: Path, monkeypatch, tmp_path: Path
):
    """Cached code is run: a folder in which others can write must not be trusted."""
    monkeypatch.setattr(jit.tempfile, "tempdir", str(tmp_path))
    sim = copy / "llmscale_env" / "sim"
    open_to_all = tmp_path / f"llmscale-{os.getuid()}-kernels-{jit.fingerprint(sim)}"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    chosen = jit.prepare_cache(sim, {}, lambda folder: folder.parent == tmp_path)
    assert chosen is not None
    assert chosen != open_to_all
    assert chosen.stat().st_mode & 0o077 == 0


def test_decorator_defaults_and_options():
    @jit.njit
    def plain(x: int) -> int:
        return x + 1

    @jit.njit(cache=False, nogil=True, fastmath=True)
    def with_options(x: float) -> float:
        return x * 2

    assert not plain.targetoptions.get("nogil", False)
    assert with_options.targetoptions["nogil"]
    assert with_options.targetoptions["fastmath"]
    assert with_options(2.0) == 4.0

"""Downloads public traces, checked, resumed when interrupted, never left half-written.

A checksum is pinned where it is known from the source itself (BurstGPT: Git LFS pointers of its
repository). The other sources publish none: for those the first download is checked by reading it
as a trace, its SHA-256 is printed and written to `fetched.json` beside it, and later downloads
into the same folder must match ("trust on first use": it notices a change, not a bad first copy).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from llmscale_env._reading import Unreadable, read_json
from llmscale_env._writing import write_text

_AZURE_2023 = (
    "https://raw.githubusercontent.com/Azure/AzurePublicDataset/"
    "790921015d50dd6aae7f7e47f39ba0e235ad6b08/data/AzureLLMInferenceTrace_{}.csv"
)
_AZURE_2024 = (
    "https://github.com/Azure/AzurePublicDataset/releases/download/dataset-llm-2024/"
    "AzureLLMInferenceTrace_{}_1week.csv"
)
_BURSTGPT = "https://github.com/HPMLL/BurstGPT/releases/download/v1.1/BurstGPT_{}.csv"
_MOONCAKE = (
    "https://raw.githubusercontent.com/kvcache-ai/Mooncake/{}/FAST25-release/traces/{}_trace.jsonl"
)
_CC_BY = "CC-BY 4.0"


@dataclass(frozen=True)
class Source:
    """A public trace.

    Attributes:
        url: where it is.
        format: how to read it (see `llmscale_env.workload.readers`).
        licence: of the data, as its source states it.
        about: what it is, and whom to cite.
        sha256, size_bytes: of the file, where the source publishes them.
    """

    url: str
    format: str
    licence: str
    about: str
    sha256: str | None = None
    size_bytes: int | None = None

    @property
    def file_name(self) -> str:
        return self.url.rsplit("/", 1)[1]


_SPLITWISE = "Patel et al., Splitwise, ISCA 2024"
_DYNAMO = "Stojkovic et al., DynamoLLM, HPCA 2025"
_BURST = "Wang et al., BurstGPT, arXiv 2401.17644"
_MOON = "Qin et al., Mooncake, FAST 2025"
SOURCES: dict[str, Source] = {
    "azure-conv-2023": Source(
        _AZURE_2023.format("conv"), "azure", _CC_BY, f"chat, 58 min, 19,366 requests; {_SPLITWISE}"
    ),
    "azure-code-2023": Source(
        _AZURE_2023.format("code"), "azure", _CC_BY, f"code, 57 min, 8,819 requests; {_SPLITWISE}"
    ),
    "azure-conv-2024": Source(
        _AZURE_2024.format("conv"), "azure", _CC_BY, f"chat, one week, 27 million; {_DYNAMO}"
    ),
    "azure-code-2024": Source(
        _AZURE_2024.format("code"), "azure", _CC_BY, f"code, one week, 17 million; {_DYNAMO}"
    ),
    "burstgpt-1": Source(
        _BURSTGPT.format("1"),
        "burstgpt",
        _CC_BY,
        f"first two months, 1.4 million, with failures; {_BURST}",
        "4bb3783693d0a435686fbfc885615d2349bd067239079fa4b749f2e679e12122",
        52_283_111,
    ),
    "burstgpt-2": Source(
        _BURSTGPT.format("2"),
        "burstgpt",
        _CC_BY,
        f"second two months, 3.9 million, with failures; {_BURST}",
        "44bf5942b03fca42c01a226a545ad3a750ec62688faecd67b6831c56a8928bf7",
        144_819_209,
    ),
    "burstgpt-without-fails-1": Source(
        _BURSTGPT.format("without_fails_1"),
        "burstgpt",
        _CC_BY,
        f"first two months, 1.4 million; {_BURST}",
        "a4d068a7113ec0290e74063a1b3447dc6001a30e4298eb313581b71006dda1f4",
        51_429_517,
    ),
    "burstgpt-without-fails-2": Source(
        _BURSTGPT.format("without_fails_2"),
        "burstgpt",
        _CC_BY,
        f"second two months, 3.8 million; {_BURST}",
        "56193aa9b2bb26128ded43d2d29a960df6bf5af062bcfc9b005f3fcaa4e6e501",
        142_376_815,
    ),
    "mooncake-conversation": Source(
        _MOONCAKE.format("a2a4b18ac537fd798d50e6e9f57031ce86419a37", "conversation"),
        "mooncake",
        "Apache-2.0 (repository)",
        f"a chat service's long prompts; {_MOON}",
    ),
    "mooncake-synthetic": Source(
        _MOONCAKE.format("3cca71daccf2a7afb8fe3f0295358f70e3a69fdb", "synthetic"),
        "mooncake",
        "Apache-2.0 (repository)",
        f"requests mixed from public long-context sets; {_MOON}",
    ),
}

_BLOCK_BYTES = 1 << 18
_TIMEOUT_S = 30.0
_TRIES = 3
_MOST_BYTES = 8 << 30
"""Of a file whose source publishes no size; the largest known one has 1.2 GB."""


class FetchError(RuntimeError):
    """A download that did not work out; the message says why and what was left."""


def fetch(
    name: str,
    to: Path,
    *,
    base_url: str | None = None,
    progress: bool = True,
    say: Callable[[str], None] = print,
) -> Path:
    """Download a public trace into a folder; one that is there and checks out is kept.

    Args:
        name: one of `SOURCES`.
        to: folder, made if missing.
        base_url: fetch `base_url/FILE_NAME` instead of the source's own address (a mirror).
        progress: draw a progress bar.
        say: gets lines for the user.

    Raises:
        FetchError: unknown name, no network, an HTTP error, a wrong checksum or size, a file that
            is no trace. Nothing under the final name is ever incomplete; what has arrived stays
            as `FILE_NAME.part` and the next call goes on from there, unless it is of no use.
    """
    if name not in SOURCES:
        raise FetchError(f"unknown trace {name!r}; there are {sorted(SOURCES)}")
    source = SOURCES[name]
    url = source.url if base_url is None else f"{base_url.rstrip('/')}/{source.file_name}"
    if not url.startswith(("https://", "http://")):
        raise FetchError(f"base_url = {base_url!r}: must begin with https:// or http://")
    to.mkdir(parents=True, exist_ok=True)
    final, part = to / source.file_name, to / f"{source.file_name}.part"
    known, whence = _expected(source, to)
    if final.exists():
        found = _sha256(final)
        if known is None:
            # Somebody put it there: it is remembered for good only if it is what it is called.
            _check_structure(final, source, "move it away to fetch it")
        if known is None or found == known:
            say(f"{final} is there already (SHA-256 {found})")
            _remember(to, source.file_name, found)
            return final
        raise FetchError(
            f"{final} is there, but its SHA-256 is {found} and {whence} is {known}: "
            "move it away to fetch it again"
        )
    for left in reversed(range(_TRIES)):
        try:
            _download(url, part, source, progress)
            break
        except (TimeoutError, ConnectionError, HTTPException) as error:
            # The connection broke: what has arrived is good, go on from there.
            if left == 0:
                raise FetchError(
                    f"{url}: the connection broke {_TRIES} times ({error}); {part} is kept, "
                    "the same command goes on from there"
                ) from None
    found = _sha256(part)
    if known is not None and found != known:
        part.unlink()
        raise FetchError(f"{url}: SHA-256 is {found}, but {whence} is {known}; removed")
    try:
        _check_structure(part, source, f"{url} sent it; removed")
    except FetchError:
        part.unlink()
        raise
    os.replace(part, final)
    _remember(to, source.file_name, found)
    if known is not None:
        say(f"{final}: SHA-256 {found} as {whence}")
    else:
        say(
            f"{final}: SHA-256 {found} (its source publishes none: it reads as a trace, "
            "and the hash is remembered in fetched.json for later downloads)"
        )
    return final


def _expected(source: Source, to: Path) -> tuple[str | None, str]:
    if source.sha256 is not None:
        return source.sha256, "the one published"
    return _ledger(to).get(source.file_name), "the one remembered in fetched.json"


def _ledger(to: Path) -> dict[str, str]:
    path = to / "fetched.json"
    if not path.exists():
        return {}
    try:
        ledger = read_json(path)
    except Unreadable:
        ledger = None
    if not isinstance(ledger, dict):
        raise FetchError(f"{path} is damaged: expected a JSON object of file names and SHA-256")
    return ledger


def _remember(to: Path, file_name: str, sha256: str) -> None:
    ledger = {**_ledger(to), file_name: sha256}
    write_text(to / "fetched.json", json.dumps(ledger, indent=2, sort_keys=True) + "\n")


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _download(url: str, part: Path, source: Source, progress: bool) -> None:
    """Get the rest of a file into `part`."""
    from tqdm import tqdm

    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "llmscale-traces"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        response = urlopen(Request(url, headers=headers), timeout=_TIMEOUT_S)
    except HTTPError as error:
        if error.code == 416 and have:
            # Nothing is left to send (or the file has shrunk, which the checksum will say).
            return
        hint = "the file is not there any more" if error.code == 404 else error.reason
        raise FetchError(f"{url}: HTTP {error.code} ({hint})") from None
    except URLError as error:
        raise FetchError(
            f"{url}: cannot be reached ({error.reason}); without a network, the shipped tables "
            "still work (python -m llmscale_env.traces list)"
        ) from None
    with response:
        resumed = response.status == 206
        start = have if resumed else 0
        length = response.headers.get("Content-Length", "")
        total = start + int(length) if length.isdecimal() else None
        most = source.size_bytes or _MOST_BYTES
        if total is not None and total > most and source.size_bytes is None:
            raise FetchError(f"{url}: {total:,} bytes offered; at most {most:,} are taken")
        if source.size_bytes is not None and total not in (None, source.size_bytes):
            raise FetchError(f"{url}: {total} bytes offered, {source.size_bytes} expected")
        with (
            part.open("ab" if resumed else "wb") as out,
            tqdm(
                total=total,
                initial=start,
                unit="B",
                unit_scale=True,
                desc=source.file_name,
                disable=not progress,
            ) as bar,
        ):
            while block := response.read(_BLOCK_BYTES):
                out.write(block)
                bar.update(len(block))
                if out.tell() > most:
                    break
    if part.stat().st_size > most:
        part.unlink()
        raise FetchError(f"{url}: sends more than {most:,} bytes; removed")
    if total is not None and part.stat().st_size < total:
        raise ConnectionError(f"{part.stat().st_size} of {total} bytes")


def _check_structure(path: Path, source: Source, then: str) -> None:
    """Read the file as a trace.

    Raises:
        FetchError: it is none, but a login page, say; the message ends with `then`.
    """
    from llmscale_env.workload.readers import read_trace

    try:
        read_trace(path, source.format, sort=True)
    except ValueError as error:
        raise FetchError(f"{path} is no {source.format} trace ({error}): {then}") from None

"""How near the simulation is to kernels, to held-out rows, to other simulators and to real servers.

    python -m experiments.fidelity [data=DIRECTORY] [parts=NAME,NAME] [out=DIRECTORY]

`data` is a folder that holds `calibration` (docs/calibration.md lists its files) and
`traces/azure_conv_2023.csv.gz`. Without it only what the package carries is shown: the held-out errors
that ship with the iteration times. Parts (all if left out):

    vidur       Vidur's run of Llama 2 70B, quantile by quantile, both schedulers
    pairs       every LLM and degree with kernels: shipped times against a look-up of each kernel
    kernels     iterations composed from kernels, beside the shipped times
    held-out    measured configurations, predicted by a fit that has not seen them
    published   decode alone beside an engine of CUDA graphs
    clients     requests of real vLLM servers that were not fitted (`reference` of `data`; docs/calibrate.md)

Prints a table for each, writes them as CSV, and ends with exit code 1 if a judged column is further
away than its tolerance. docs/fidelity.md says what the numbers show and what they do not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from experiments.fidelity.part import Part
from experiments.output import RESULTS, text_table, write_csv
from llmscale_env._cli import Slip, check_folder, parse_options, run_command, some_of

PARTS = ("vidur", "pairs", "kernels", "held-out", "published", "clients")


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; 0 within all tolerances, 1 if not, 2 for a slip."""
    return run_command("fidelity", __doc__, words, _run, wordless=True)


def _run(words: list[str]) -> int:
    options = parse_options(words, ("data", "parts", "out"))
    out = Path(options.get("out", RESULTS / "fidelity"))
    if "data" not in options:
        if "parts" in options:
            raise Slip("parts needs data=DIRECTORY")
        return _shipped()
    chosen = some_of(options, "parts", PARTS) if "parts" in options else PARTS
    data = Path(options["data"])
    makers = _makers(data, out)
    check_folder("out", out)
    failed = []
    for name in chosen:
        part = makers[name]()
        print(f"{part.title}\n\n{text_table(part.head, part.rows)}\n")
        if part.judged:
            verdict = "within" if part.within else "NOT within"
            print(
                f"{part.judged.removesuffix(', %')}: the worst is {part.worst_percent:.1f} % away, "
                f"{verdict} {part.tolerance_percent:g} %\n"
            )
        if not part.within:
            failed.append(name)
        print(f"written: {write_csv(out / f'{name}.csv', part.head, part.rows)}\n")
    return 1 if failed else 0


def _makers(data: Path, out: Path) -> dict[str, Callable[[], Part]]:
    """What makes each part, once the data have been read.

    Raises:
        Slip: they are not there or malformed.
    """
    # Imported here: scipy and Numba take their time, a slip should be answered before that.
    from experiments import reference_run as reference
    from experiments.fidelity import clients, peers, published, rows
    from llmscale_env.cluster.measurements import RawDataError
    from llmscale_env.cluster.readers import read_calibration_dir

    directory = data / "calibration"
    try:
        sets = read_calibration_dir(directory)
    except RawDataError as error:
        raise Slip(str(error)) from None
    requests = reference.reference_requests(data)
    return {
        "vidur": lambda: peers.vidur_part(directory, sets, requests),
        "pairs": lambda: peers.pairs_part(directory, requests),
        "kernels": lambda: rows.kernels_part(sets),
        "held-out": lambda: rows.held_out_part(sets),
        "published": lambda: published.cuda_graph_part(directory),
        "clients": lambda: clients.clients_part(data, out),
    }


def _shipped() -> int:
    from llmscale_env.calibrate import report
    from llmscale_env.cluster.iteration_data import load_models, read_data_file

    print(
        "Held-out errors that ship with the iteration times; with data=DIRECTORY there is more.\n"
    )
    print(report(load_models(), read_data_file().get("roofline")))
    return 0


if __name__ == "__main__":
    sys.exit(main())

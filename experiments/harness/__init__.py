"""What runs experiments: one module per figure or table of a paper, run, cached, judged, reported.

An experiment is a module in the folder of its paper (`experiments/chiron/fig09_interactive_load.py` is
`chiron-fig09`); what a paper leaves out is a study (`experiments/aladdin/study_gap_to_optimum.py` is
`aladdin-gap`). Its docstring says what is shown and in which setting; the first line is its title. It has

| name | what |
|---|---|
| `FIGURE` | which figure or table, as "Figure 9" |
| `PARAMETERS` | `{"quick": Parameters(...), "paper": Parameters(...)}`, see `harness.parameters` |
| `cases(parameters)` | the runs: a list of dicts of plain values that say all that a run depends on |
| `run(case)` | one run: rows (dicts of plain values), to which the case's own values are added |
| `plot(frame, parameters)` | a matplotlib figure of all rows, or several by name |
| `claims(frame, parameters)` | a row per sentence of the paper, held against the rows, see `harness.claims` |
| `NAME` | may be left out: what it is called in place of PAPER-figNN |
| `tables(frame, parameters)` | may be left out: by name, rows (dicts) of a table made from all rows |
| `SERIES` | may be left out: kinds of rows (column `kind`) that are many, as series over time |
| `excerpt(frame, parameters)` | may be left out: of many rows those that lie beside the page |
| `CLOCKS` | may be left out: columns that time the machine, which differ whenever a run is done again |
| `PAPER_POINTS` | may be left out: numbers of the paper to draw, see `harness.picture.Published` |

Pages come with the rows that their pictures need: all but those of `SERIES`, or the `excerpt`. All rows
stay in `results/`.

`cases` is a `harness.figure.Grid` where the runs are all combinations of some columns, `claims` a generator
under `harness.figure.claimed`. `tests/test_figures.py` goes over the figures of all five papers.
A new one gets a line in its `SMALL`.

A case with `"timed": True` measures the machine: each command does it anew.

`experiments.run` runs one, `experiments.list` names all, `experiments.report` writes the page,
`experiments.repeat` does some of its runs again with later code.

| question | module |
|---|---|
| which experiments are there | `catalogue` |
| what a parameter may be, and whose it is | `parameters` |
| when a claim counts as reproduced | `claims` |
| the settings in which a main claim holds, drawn | `maps` |
| grids of runs, numbers per seed, lines with a band, axes, claims as rows | `figure` |
| when a finished run is used again | `fingerprint`, `cache` |
| one run and what became of it | `execute` |
| processes, Ray, interruptions | `llmscale_env._spread` |
| what lies in `results/` | `results` |
| the main claims of a paper, and what it does not say | `headlines`; a module in its folder |
| how the page looks | `page` |
| how a picture looks on it, and the paper's numbers in it | `picture` |
"""

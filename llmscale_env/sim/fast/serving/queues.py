"""Shared queues, and what a controller is shown of them, kept up to date request by request.

A backlog can be a million requests long and is looked at once per control interval, so nothing here
walks through it: what is shown changes as requests enter and leave, at a constant (amortised) cost.
Requests enter at both ends and leave at the head only; `enter_back`, `enter_front` and `leave` are
the only ways in and out.

- *Counts and token sums*: added and subtracted.
- *Oldest arrival*: a second list through the same requests holds those that came before everybody
  behind them; its head is the oldest. A request at the head of the queue that is not in it leaves no trace.
- *Slack bins* (time to the deadline over the target): within a class, requests come closer to their
  deadlines in order of arrival, so per class and bound one cursor over `by_class` says who has passed
  it; `age` moves the cursors on, and each request in a queue that one passes changes its bin.
- *Runs*: consecutive requests with the same arrival, class and answer to "has it had its first
  token?" are one run, described at its first request.
"""

from __future__ import annotations

from llmscale_env.sim.fast.state.lists import (
    oldest_row,
    queue_row,
)
from llmscale_env.sim.fast.state.memory import (
    aging_at,
    by_class_of,
    cls_at,
    const_of,
    dirty_of,
    glob_of,
    lists_of,
    queue_at,
    req_at,
)
from llmscale_env.sim.fast.state.structures import (
    push_back,
    push_back_aux,
    push_front,
    push_front_aux,
    unlink,
    unlink_aux,
)
from llmscale_env.sim.jit import njit
from llmscale_env.sim.observed import N_SLACK_BINS, SLACK_BOUNDS
from llmscale_env.sim.spec import RequestState

_SHARED = int(RequestState.SHARED_QUEUE)

_N_BOUNDS = N_SLACK_BINS - 1


# ---- in and out ----------------------------------------------------------------------------------


@njit
def _count(S, r, q, sign):
    """Request `r` enters (`sign` 1) or leaves (-1) queue `q`: counts, sums and bins."""
    req = req_at(S, r)
    queue = queue_at(S, q)
    queue.tokens += sign * (req.input + req.emitted)
    queue.predicted_tokens += sign * max(1, req.predicted - req.emitted)
    if req.first < 0:
        predicted = int(req.predicted)
        queue.fresh += sign
        queue.fresh_input += sign * req.input
        queue.fresh_predicted += sign * predicted
        queue.fresh_squares += sign * predicted * predicted
    aging = aging_at(S, req.cls)
    aging.queued += sign
    b = _N_BOUNDS
    while b > 0 and r < aging.first_id[b - 1]:
        b -= 1
    queue.slack_bins[b] += sign


@njit
def _same_run(S, r, other):
    one, two = req_at(S, r), req_at(S, other)
    return one.arrival == two.arrival and one.cls == two.cls and (one.first < 0) == (two.first < 0)


@njit
def enter_back(S, r, q):
    """Request `r` joins the end of shared queue `q`."""
    row, oldest = queue_row(S, q), oldest_row(S, q)
    queue = queue_at(S, q)
    tail = lists_of(S)[row, 1]
    if tail >= 0 and _same_run(S, r, tail):
        req_at(S, queue.last_run).run_n += 1
        req_at(S, queue.last_run).run_last = r
    else:
        req_at(S, r).run_n = 1
        req_at(S, r).run_last = r
        queue.last_run = r
        queue.runs += 1
    while lists_of(S)[oldest, 1] > r:  # ids are in order of arrival; -1: none
        unlink_aux(S, oldest, lists_of(S)[oldest, 1])
    push_back_aux(S, oldest, r)
    push_back(S, row, r)
    _count(S, r, q, 1)
    req_at(S, r).at = -1
    req_at(S, r).state = _SHARED
    req_at(S, r).queue = q
    mark_dirty(S, q)


@njit
def enter_front(S, r, q):
    """Request `r` comes back to the head of shared queue `q`."""
    row, oldest = queue_row(S, q), oldest_row(S, q)
    queue = queue_at(S, q)
    req = req_at(S, r)
    head = lists_of(S)[row, 0]
    req.run_n = 1
    req.run_last = r
    if head < 0:
        queue.last_run = r
        queue.runs += 1
    elif _same_run(S, r, head):
        req.run_n += req_at(S, head).run_n
        req.run_last = req_at(S, head).run_last
        if queue.last_run == head:
            queue.last_run = r
    else:
        queue.runs += 1
    first = lists_of(S)[oldest, 0]
    if first < 0 or r < first:
        push_front_aux(S, oldest, r)
    push_front(S, row, r)
    _count(S, r, q, 1)
    req.at = -1
    req.state = _SHARED
    req.queue = q
    mark_dirty(S, q)


@njit
def leave(S, r, q):
    """Request `r`, the head of shared queue `q`, is taken out of it."""
    row, oldest = queue_row(S, q), oldest_row(S, q)
    queue = queue_at(S, q)
    req = req_at(S, r)
    if req.run_n > 1:
        after = req_at(S, req.next)
        after.run_n = req.run_n - 1
        after.run_last = req.run_last
        if queue.last_run == r:
            queue.last_run = req.next
    else:
        queue.runs -= 1
    if lists_of(S)[oldest, 0] == r:
        unlink_aux(S, oldest, r)
    unlink(S, row, r)
    _count(S, r, q, -1)
    mark_dirty(S, q)


@njit
def change_prediction(S, r, tokens):
    """Request `r`, in a shared queue, is now predicted to emit `tokens` in all."""
    q = req_at(S, r).queue
    _count(S, r, q, -1)
    req_at(S, r).predicted = tokens
    _count(S, r, q, 1)


@njit
def mark_dirty(S, q):
    """Queue `q` has changed: at the end of the event whoever pulls from it is called."""
    if queue_at(S, q).dirty == 0:
        queue_at(S, q).dirty = 1
        dirty_of(S)[glob_of(S).n_dirty] = q
        glob_of(S).n_dirty += 1


@njit
def _empty(S, q):
    """Take everybody out of queue `q` who is to be moved; the others stay in order."""
    row, oldest = queue_row(S, q), oldest_row(S, q)
    r = lists_of(S)[row, 0]
    for which in (row, oldest):
        lists_of(S)[which, 0] = -1
        lists_of(S)[which, 1] = -1
        lists_of(S)[which, 2] = 0
    queue_at(S, q).runs = 0
    while r >= 0:
        after = req_at(S, r).next
        _count(S, r, q, -1)
        if req_at(S, r).at < 0:
            enter_back(S, r, q)
        r = after


@njit
def regroup(S, requests, queues):
    """Move waiting requests to the ends of queues, in the order given."""
    for k in range(len(requests)):
        req_at(S, requests[k]).at = queues[k]
        queue_at(S, req_at(S, requests[k]).queue).touched = 1
    for q in range(const_of(S).n_queues):
        if queue_at(S, q).touched:
            queue_at(S, q).touched = 0
            _empty(S, q)
            mark_dirty(S, q)
    for k in range(len(requests)):
        enter_back(S, requests[k], queues[k])


# ---- time passes ---------------------------------------------------------------------------------


@njit
def _has_passed(S, r, slo_ps, bound, t):
    """Whether request `r` has less of its target left at `t` than the bound."""
    return (req_at(S, r).arrival + slo_ps - t) / slo_ps < bound


@njit
def _skip(S, low, end, slo_ps, bound, t):
    """The first place from `low` on in `by_class` whose request has not passed the bound."""
    by_class = by_class_of(S)
    while low < end:
        middle = (low + end) >> 1
        if _has_passed(S, by_class[middle], slo_ps, bound, t):
            low = middle + 1
        else:
            end = middle
    return low


@njit
def age(S, t):
    """Bring the slack bins up to time `t`, which never falls."""
    by_class = by_class_of(S)
    for c in range(const_of(S).n_classes):
        aging = aging_at(S, c)
        slo = cls_at(S, c).ttft_slo_ps
        for b in range(_N_BOUNDS - 1, -1, -1):  # who passes several bounds passes the upper first
            bound = SLACK_BOUNDS[b]
            k = aging.cursor[b]
            if aging.queued == 0:
                k = _skip(S, k, aging.end, slo, bound, t)
            while k < aging.end:
                r = by_class[k]
                if not _has_passed(S, r, slo, bound, t):
                    break
                if req_at(S, r).state == _SHARED:
                    queue = queue_at(S, req_at(S, r).queue)
                    queue.slack_bins[b + 1] -= 1
                    queue.slack_bins[b] += 1
                k += 1
            aging.cursor[b] = k
            aging.first_id[b] = by_class[k] if k < aging.end else glob_of(S).n_requests


# ---- reading -------------------------------------------------------------------------------------


@njit
def read_queue(S, q, out, k):
    """Fill `out` (n, QUEUED_DTYPE) from row `k` on with the requests of shared queue `q`, head first."""
    r = lists_of(S)[queue_row(S, q), 0]
    while r >= 0:
        req = req_at(S, r)
        out[k].request = r
        out[k].arrival_ps = req.arrival
        out[k].slo_class = req.cls
        out[k].input_tokens = req.input
        out[k].predicted_tokens = req.predicted
        out[k].emitted_tokens = req.emitted
        out[k].queue = q
        out[k].llm = req.llm
        out[k].started = req.first >= 0
        k += 1
        r = req.next
    return k


@njit
def read_waiting(S, out):
    """The same for all shared queues, one after the other."""
    k = 0
    for q in range(const_of(S).n_queues):
        k = read_queue(S, q, out, k)


@njit
def read_runs(S, q, out):
    """Fill `out` (n, RUN_DTYPE) with the runs of shared queue `q`, head first."""
    r = lists_of(S)[queue_row(S, q), 0]
    k = 0
    while r >= 0:
        req = req_at(S, r)
        out[k].arrival_ps = req.arrival
        out[k].slo_class = req.cls
        out[k].started = req.first >= 0
        out[k].requests = req.run_n
        k += 1
        r = req_at(S, req.run_last).next

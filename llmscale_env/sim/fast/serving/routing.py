"""Where a request goes (docs/engine.md, section 6). One small function per rule."""

from __future__ import annotations

import numpy as np

from llmscale_env.sim.fast.serving.batch import (
    demand,
)
from llmscale_env.sim.fast.serving.best_fit import best_fit
from llmscale_env.sim.fast.serving.hashing import splitmix64
from llmscale_env.sim.fast.serving.prefix_cache import found_tokens
from llmscale_env.sim.fast.serving.queues import (
    enter_back,
)
from llmscale_env.sim.fast.serving.region_routing import join_own, send
from llmscale_env.sim.fast.serving.timing import iterations_done, kv_after, kv_now
from llmscale_env.sim.fast.serving.wake import notice_own, wake
from llmscale_env.sim.fast.state.lists import (
    gateway_row,
    preempted_row,
    prefill_row,
    queue_row,
)
from llmscale_env.sim.fast.state.memory import (
    active_of,
    blocks_at,
    client_queue_of,
    cls_at,
    const_of,
    glob_of,
    ids_of,
    inst_at,
    lists_of,
    pool_at,
    prof_at,
    req_at,
    roam_at,
    route_at,
    route_pools_of,
    running_of,
)
from llmscale_env.sim.fast.state.records import (
    BAD_ROUTER_ANSWER,
)
from llmscale_env.sim.fast.state.structures import leave_own, pop_front, push_back
from llmscale_env.sim.jit import njit
from llmscale_env.sim.spec import RequestState, RouterKind

_GATEWAY = int(RequestState.GATEWAY)
_OWN = int(RequestState.OWN_QUEUE)
_ROUND_ROBIN = int(RouterKind.ROUND_ROBIN)
_JSQ_REQUESTS = int(RouterKind.JSQ_REQUESTS)
_JSQ_TOKENS = int(RouterKind.JSQ_TOKENS)
_POWER_OF_TWO = int(RouterKind.POWER_OF_TWO)
_LEAST_KV = int(RouterKind.LEAST_KV)
_CLASS_AFFINE = int(RouterKind.CLASS_AFFINE)
_SHARED_QUEUE = int(RouterKind.SHARED_QUEUE)
_HOLD = int(RouterKind.HOLD)
_CUSTOM = int(RouterKind.CUSTOM)
_REGIONAL = int(RouterKind.REGIONAL)
_PREFIX_AWARE = int(RouterKind.PREFIX_AWARE)
_LEAST_PENDING_PREFILL = int(RouterKind.LEAST_PENDING_PREFILL)

_SALT = np.uint64(0xD1B54A32D192ED03)


@njit
def requests_at(S, i):
    """Requests in instance `i`'s own queue, preempted list and batch, in flight and landed."""
    inst = inst_at(S, i)
    return lists_of(S)[i, 2] + lists_of(S)[preempted_row(S, i), 2] + inst.n_run + inst.n_coming


@njit
def _n_pools(S, m, c, which):
    """How many own (0), overflow (1) or decode (2) pools the route has."""
    if which == 0:
        return route_at(S, m, c).n_pools
    return route_at(S, m, c).n_overflow if which == 1 else route_at(S, m, c).n_decode


@njit
def _count(S, m, c, which):
    """Number of candidates in the route's pools."""
    n = 0
    for k in range(_n_pools(S, m, c, which)):
        n += pool_at(S, route_pools_of(S)[m, c, which, k]).n_active
    return n


@njit
def _candidate(S, m, c, which, number):
    """Candidate `number` of the route's pools."""
    k = 0
    while True:
        p = route_pools_of(S)[m, c, which, k]
        n = pool_at(S, p).n_active
        if number < n:
            return active_of(S)[p, number]
        number -= n
        k += 1


@njit(forceinline=True)
def _jsq_requests(S, m, c):
    """Among the own pools, where nobody is in flight: the most used rule does without that count."""
    best, least = -1, np.int64(0)
    lists, running, first = lists_of(S), running_of(S), preempted_row(S, 0)
    for k in range(route_at(S, m, c).n_pools):
        p = route_pools_of(S)[m, c, 0, k]
        for a in range(pool_at(S, p).n_active):
            i = active_of(S)[p, a]
            load = lists[i, 2] + lists[first + i, 2] + running[i]
            if best < 0 or load < least:
                best, least = i, load
    return best


@njit
def _jsq_decode(S, m, c):
    best, least = -1, np.int64(0)
    for k in range(route_at(S, m, c).n_decode):
        p = route_pools_of(S)[m, c, 2, k]
        for a in range(pool_at(S, p).n_active):
            i = active_of(S)[p, a]
            load = requests_at(S, i)
            if best < 0 or load < least:
                best, least = i, load
    return best


@njit
def _jsq_tokens(S, m, c, which, t):
    best, least = -1, np.int64(0)
    for k in range(_n_pools(S, m, c, which)):
        p = route_pools_of(S)[m, c, which, k]
        for a in range(pool_at(S, p).n_active):
            i = active_of(S)[p, a]
            inst = inst_at(S, i)
            if best >= 0 and inst.waiting + max(0, inst.left - inst.seg_n * inst.n_dec) >= least:
                continue  # even at the end of its segment it would not be less
            left = inst.left - iterations_done(S, i, t) * inst.n_dec
            load = inst.waiting + max(0, left)
            if best < 0 or load < least:
                best, least = i, load
    return best


@njit
def _least_kv(S, m, c, which, t):
    best, used, cap = -1, np.int64(0), np.int64(1)
    for k in range(_n_pools(S, m, c, which)):
        p = route_pools_of(S)[m, c, which, k]
        mine = prof_at(S, pool_at(S, p).profile).cap
        for a in range(pool_at(S, p).n_active):
            i = active_of(S)[p, a]
            if best >= 0 and (inst_at(S, i).kv + inst_at(S, i).waiting) * cap >= used * mine:
                continue  # KV only grows within a segment
            kv = kv_now(S, i, t) + inst_at(S, i).waiting
            if best < 0 or kv * cap < used * mine:
                best, used, cap = i, kv, mine
    return best


@njit
def _pending_prefill(S, i):
    """Tokens of contexts still to be computed at instance `i`, of waiting requests all of them."""
    inst = inst_at(S, i)
    waiting = lists_of(S)[i, 2] + lists_of(S)[preempted_row(S, i), 2]
    tokens = inst.waiting - waiting * (1 + const_of(S).half_block)
    in_steps = pool_at(S, inst.pool).block_tokens > 0
    r = lists_of(S)[prefill_row(S, i), 0]
    while r >= 0:
        req = req_at(S, r)
        tokens += req.pre_target - req.pre_done
        if in_steps:
            tokens += req.join_iter  # it runs, and has not ended
        r = req.aux_next
    return tokens


@njit
def _least_pending_prefill(S, m, c):
    best, least = -1, np.int64(0)
    for k in range(route_at(S, m, c).n_pools):
        p = route_pools_of(S)[m, c, 0, k]
        for a in range(pool_at(S, p).n_active):
            i = active_of(S)[p, a]
            load = _pending_prefill(S, i)
            if best < 0 or load < least:
                best, least = i, load
    return best


@njit
def _promised(S, i):
    """Tokens that prefix-aware routes have found for those in instance `i`'s own queue."""
    tokens = np.int64(0)
    r = lists_of(S)[i, 0]
    while r >= 0:
        tokens += blocks_at(S, r).promised
        r = req_at(S, r).next
    return tokens


@njit
def _prefix_aware(S, m, c, r, t):
    """NVIDIA Dynamo's KV router; the source is in the reference engine."""
    rule, req = route_at(S, m, c), req_at(S, r)
    context = np.int64(req.input) + req.emitted
    best, least, promised = -1, 0.0, np.int64(0)
    for k in range(rule.n_pools):
        p = route_pools_of(S)[m, c, 0, k]
        pool = pool_at(S, p)
        for a in range(pool.n_active):
            i = active_of(S)[p, a]
            hits = np.int64(0)
            pending = _pending_prefill(S, i) + context
            if const_of(S).caches:
                pending -= _promised(S, i)
                if pool.prefix_cache:
                    hits = found_tokens(S, i, r, t)
            held = kv_now(S, i, t) + inst_at(S, i).waiting
            cost = rule.prefill_load_scale * (pending - rule.overlap_score_credit * hits) + held
            if best < 0 or cost < least:
                best, least, promised = i, cost, hits
    if const_of(S).caches:
        blocks_at(S, r).promised = promised
    return best


@njit
def _power_of_two(S, m, c, which, r, n):
    h = splitmix64(np.uint64(ids_of(S)[r]))
    a = np.int64(h % np.uint64(n))
    if n == 1:
        return _candidate(S, m, c, which, a)
    b = np.int64((h >> np.uint64(32)) % np.uint64(n - 1))
    if b >= a:
        b += 1
    first, second = min(a, b), max(a, b)
    i, j = _candidate(S, m, c, which, first), _candidate(S, m, c, which, second)
    return j if requests_at(S, j) < requests_at(S, i) else i


@njit
def _affine_load(S, i, may_evict):
    load = requests_at(S, i)
    if may_evict:
        load -= inst_at(S, i).ev_n
    return load


@njit
def _has_room(S, i, r, may_evict, t):
    """Zero queueing: nobody waits at instance `i`, and its batch and memory have space for request `r`."""
    inst = inst_at(S, i)
    if requests_at(S, i) > inst.n_run:
        return False
    cap = prof_at(S, inst.profile).cap - inst.watermark
    kv = inst.kv + demand(S, r)
    if pool_at(S, inst.pool).block_tokens > 0:
        return inst.n_run < inst.limit and kv_now(S, i, t) + demand(S, r) <= cap
    running, growing = inst.n_run, inst.n_dec
    if may_evict:
        running -= inst.ev_n
        kv -= inst.ev_kv
        growing -= inst.ev_dec
    if running >= inst.limit or kv > cap:
        return False
    return kv + growing * iterations_done(S, i, t) <= cap


@njit
def _affine_pick(S, m, c, r, t, which, with_room, best, least):
    """Least loaded candidate of the own (0) or overflow (1) pools, better than `best` with `least`."""
    high = cls_at(S, c).priority == 0
    for k in range(_n_pools(S, m, c, which)):
        p = route_pools_of(S)[m, c, which, k]
        pool = pool_at(S, p)
        may_evict = high and pool.evicts == 1
        for a in range(pool.n_active):
            i = active_of(S)[p, a]
            load = _affine_load(S, i, may_evict)
            if best >= 0 and load >= least:
                continue
            if with_room and not _has_room(S, i, r, may_evict, t):
                continue
            best, least = i, load
    return best, least


@njit
def _class_affine(S, m, c, r, t):
    """Chiron, section 3: own pools, then overflow, then the queue (-1)."""
    route = route_at(S, m, c)
    if route.queue >= 0 and lists_of(S)[queue_row(S, req_at(S, r).queue), 2] > 0:
        return -1
    h = splitmix64(np.uint64(ids_of(S)[r]) ^ _SALT)
    first = 1 if np.float64(h >> np.uint64(11)) * 2.0**-53 < route.share else 0
    none = np.int64(0)
    best = np.int64(-1)
    for k in range(2):
        which = first if k == 0 else 1 - first
        best, _ = _affine_pick(S, m, c, r, t, which, True, -1, none)
        if best >= 0:
            break
    if best < 0 and route.queue < 0:
        best, least = _affine_pick(S, m, c, r, t, 0, False, -1, none)
        best, least = _affine_pick(S, m, c, r, t, 1, False, best, least)
    return best


@njit
def _custom(S, m, c, which, r, t, n, router, features):
    row = 0
    for k in range(_n_pools(S, m, c, which)):
        p = route_pools_of(S)[m, c, which, k]
        for a in range(pool_at(S, p).n_active):
            i = active_of(S)[p, a]
            inst = inst_at(S, i)
            done = iterations_done(S, i, t)
            features[row, 0] = requests_at(S, i)
            features[row, 1] = inst.waiting
            features[row, 2] = kv_after(S, i, done)
            features[row, 3] = prof_at(S, inst.profile).cap
            features[row, 4] = inst.left - inst.n_dec * done
            features[row, 5] = inst.limit
            features[row, 6] = inst.ev_n
            features[row, 7] = i
            features[row, 8] = found_tokens(S, i, r, t) if pool_at(S, p).prefix_cache else 0
            row += 1
    req = req_at(S, r)
    return router(features, n, ids_of(S)[r], np.int64(req.input), np.int64(req.predicted), c)


@njit(forceinline=True)
def to_instance(S, r, i, t):
    inst = inst_at(S, i)
    req = req_at(S, r)
    req.state = _OWN
    if const_of(S).regional:
        join_own(S, i, r, t)
    else:
        push_back(S, i, r)
    req.at = i
    inst.waiting += demand(S, r)
    inst.left += req.predicted - req.emitted
    inst.fit_valid = 0
    notice_own(S, i, r, t)


@njit
def move_waiting(S, i, j, count, t):
    """The last `count` requests of instance `i`'s own queue go to the end of instance `j`'s, in order."""
    count = min(count, lists_of(S)[i, 2])
    if count == 0:
        return
    r = lists_of(S)[i, 1]
    for _ in range(count - 1):
        r = req_at(S, r).prev
    inst = inst_at(S, i)
    for _ in range(count):
        after = req_at(S, r).next
        leave_own(S, i, r)
        inst.waiting -= demand(S, r)
        inst.left -= req_at(S, r).predicted - req_at(S, r).emitted
        inst.fit_valid = 0
        to_instance(S, r, j, t)
        r = after
    wake(S, i, t)


@njit
def to_gateway(S, r):
    req_at(S, r).state = _GATEWAY
    req_at(S, r).at = -1
    push_back(S, gateway_row(S, req_at(S, r).llm), r)


@njit
def queue_for(rule, input_tokens):
    """Shared queue of a route's requests of so many input tokens, or -1."""
    k = 0
    while k < rule.n_uppers and input_tokens > rule.uppers[k]:
        k += 1
    return rule.queues[k]


@njit
def pick(S, r, m, c, which, kind, t):
    """An instance by the compiled rules that know candidates only; -1: none."""
    n = _count(S, m, c, which)
    rule = route_at(S, m, c)
    if n == 0 or kind == _HOLD:
        return np.int64(-1)
    if kind == _JSQ_REQUESTS:
        return _jsq_decode(S, m, c) if which == 2 else _jsq_requests(S, m, c)
    if kind == _ROUND_ROBIN:
        if which == 2:
            rule.decode_counter += 1
            return _candidate(S, m, c, which, (rule.decode_counter - 1) % n)
        rule.counter += 1
        return _candidate(S, m, c, which, (rule.counter - 1) % n)
    if kind == _JSQ_TOKENS:
        return _jsq_tokens(S, m, c, which, t)
    if kind == _POWER_OF_TWO:
        return _power_of_two(S, m, c, which, r, n)
    if kind == _LEAST_KV:
        return _least_kv(S, m, c, which, t)
    if kind == _PREFIX_AWARE:
        return _prefix_aware(S, m, c, r, t)
    if kind == _LEAST_PENDING_PREFILL:
        return _least_pending_prefill(S, m, c)
    return best_fit(S, m, c, which, r, t)


@njit
def pick_custom(S, r, m, c, which, t, router, features):
    """The instance that the user's function chooses; -1: no candidate, -2: to the shared queue."""
    n = _count(S, m, c, which)
    rule = route_at(S, m, c)
    if n == 0:
        return np.int64(-1)
    glob = glob_of(S)
    if glob.error != 0:  # of the same event; the table that it was about stays
        return _candidate(S, m, c, which, 0)
    answer = _custom(S, m, c, which, r, t, n, router, features)
    if answer == -1 and which == 0 and rule.queue >= 0:
        return np.int64(-2)
    if answer < 0 or answer >= n:
        glob.error = BAD_ROUTER_ANSWER
        glob.error_request = ids_of(S)[r]
        glob.error_answer = answer
        glob.error_candidates = n
        answer = 0
    return _candidate(S, m, c, which, answer)


@njit
def route(S, r, t, router, features):
    """Send request `r` where its route says; False if it went to the gateway."""
    m = np.int64(req_at(S, r).llm)
    c = np.int64(req_at(S, r).cls)
    rule = route_at(S, m, c)
    kind = rule.kind
    queue = queue_for(rule, req_at(S, r).input)
    if rule.by_region:
        queue = client_queue_of(S)[m, c, roam_at(S, r).region]
    req_at(S, r).queue = queue
    if kind == _REGIONAL:
        if send(S, r, t):
            return True
        to_gateway(S, r)
        return False
    if kind == _SHARED_QUEUE:
        enter_back(S, r, queue)
        return True
    if kind == _CLASS_AFFINE:
        i = _class_affine(S, m, c, r, t)
        if i < 0 and queue >= 0:
            enter_back(S, r, queue)
            return True
    elif kind != _CUSTOM:
        i = pick(S, r, m, c, 0, kind, t)
    else:
        i = pick_custom(S, r, m, c, 0, t, router, features)
        if i == -2:
            enter_back(S, r, queue)
            return True
    if i < 0:
        to_gateway(S, r)
        return False
    to_instance(S, r, i, t)
    return True


@njit
def route_gateway(S, m, t, router, features):
    """Route the requests that wait in LLM `m`'s gateway again, in order."""
    row = gateway_row(S, m)
    for _ in range(lists_of(S)[row, 2]):
        # Taken from the front; whoever finds no candidate joins the end, so the order stays.
        route(S, pop_front(S, row), t, router, features)

r"""Run a policy in the shadow of a real cluster: what it would order and why, from vLLM's metrics.

    llmscale serve policy=NAME prometheus=URL [every=30s] [selector=LABELS] [KEY=VALUE ...]
    llmscale serve policies     which policies can run on what vLLM tells, and what the others need
    (or: python -m experiments.desk.serve ...)

    policy=NAME        of the registry, with settings (hpa:kv_target=0.6), or a network's run folder
                       or model
    prometheus=URL     server that scrapes the pods; prometheus_token_file=FILE: a bearer token
    every=30s          time between two decisions (s, m)
    namespace=, deployment=   whose pods are read, and whose replica count kube-state-metrics or
                       Kubernetes tells
    selector=LABELS    of the pods' targets in their place, such as 'namespace="llm",job="vllm"';
                       scrape=15s: their interval, if it is not to be found out
    llm=, gpu=, tp=N   cards, GPUs per pod (llama-3.1-8b, a100-80gb, 1)
    load_s=180         seconds from an order of a pod until it serves; max_instances=64: at most
    slo=ttft:S,itl:S   targets (ttft:1,itl:0.05); of classes as in advise. With several classes
                       nothing is counted by class, since vLLM knows none
    config=FILE.yaml   keys policy, namespace, deployment, llm, gpu, tp, load_s, max_instances,
                       every_s, targets: a list of {name, ttft_s, itl_s, attainment}; words of the
                       command line come first
    port=9108          own metrics, llmscale_desired_instances and others; 0: none
    log=FILE.jsonl     a line of JSON per decision; turns=N ends after N decisions
    apply=scale        write the replica count to Kubernetes. Off by default; needs kubernetes=URL,
                       namespace=, deployment=, and takes token_file=, ca_file=, min_replicas=1,
                       max_replicas=N (max_instances), max_step=4, dead_after_s=S (twice every)

A policy that needs more than vLLM's metrics is refused at the start. The last order stands while
Prometheus is silent, or fewer than half of the pods serve. Writing stops for good when somebody
else changes the replica count, or Kubernetes refuses.

Examples:
    llmscale serve policy=hpa:kv_target=0.6 prometheus=http://localhost:9090 namespace=llm
    llmscale serve config=serve.yaml prometheus=http://localhost:9090 log=decisions.jsonl
    llmscale serve policy=keda prometheus=http://prom:9090 apply=scale kubernetes=https://k8s:6443 \
        namespace=llm deployment=vllm token_file=token max_replicas=12
"""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from llmscale_env._cli import (
    Slip,
    check_file,
    closest,
    complain,
    needs,
    number,
    one_of,
    parse_options,
    run_command,
    table,
    whole,
)
from llmscale_env._reading import Unreadable, read_yaml

if TYPE_CHECKING:
    from experiments.desk.serve.metrics import Reader
    from experiments.desk.serve.scale import Writer
    from experiments.desk.serve.seen import Cluster, Target
    from experiments.desk.serve.shadow import Shadow
    from llmscale_env.control.policy import Policy

CARDS = ("llm", "gpu", "tp", "load_s", "max_instances", "slo")
_APPLY = (
    "kubernetes", "token_file", "ca_file", "min_replicas", "max_replicas", "max_step", "dead_after_s",
)  # fmt: skip
KEYS = (
    "policy", "prometheus", "every", "config", *CARDS, "selector", "scrape", "prometheus_token_file",
    "port", "log", "turns", "apply", "namespace", "deployment", *_APPLY,
)  # fmt: skip
_PLACE = ("namespace", "deployment")
CONFIG_KEYS = (
    "policy", *_PLACE, "llm", "gpu", "tp", "load_s", "max_instances", "every_s", "targets",
)  # fmt: skip
_NAME = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: 0 after `turns` decisions, 2 after a slip, 130 when interrupted."""
    return run_command("serve", __doc__, argv, _serve)


def _serve(words: Sequence[str]) -> int:
    if words[0] == "policies":
        return _policies(parse_options(words[1:], ("config", "every", *CARDS), "policies"))
    asked = ask(words)
    from experiments.desk.serve import seen

    print(f"{asked.policy.name}: is tried on what vLLM tells ...", flush=True)
    if lacks := seen.needs(asked.policy, asked.cluster):
        raise Slip(f"policy = {asked.name!r}: {lacks}")
    if not asked.reader.selector:
        complain(
            "serve: without namespace=, deployment= or selector= every target of the server with "
            "vLLM's metrics is read as one deployment"
        )
    return run(asked)


def _policies(options: dict[str, str]) -> int:
    from experiments.desk.serve import seen

    config = _config(options)
    cluster = _cluster(options, config, _every_s(options, config))
    print(f"Every policy is tried on {cluster.llm} on {cluster.tp} x {cluster.gpu} ...", flush=True)
    rows = [(name, "no" if lacks else "yes", lacks) for name, lacks in seen.runnable(cluster)]
    print(table(("policy", "can run", "why not"), rows))
    return 0


@dataclass(frozen=True)
class Asked:
    """The command line, checked.

    Attributes:
        name: the policy as it was asked for; `policy`: itself.
        reader, writer: what is looked at, and who writes (None: nobody).
        log: file that decisions are added to; None: none.
        port: of the own metrics; 0: none.
        turns: decisions until the command ends; None: it goes on.
    """

    name: str
    policy: Policy
    cluster: Cluster
    reader: Reader
    writer: Writer | None
    log: Path | None
    port: int
    turns: int | None


def ask(words: Sequence[str]) -> Asked:
    """Check a command line.

    Raises:
        Slip: naming the option, its value and what is allowed.
    """
    from experiments.desk.serve.metrics import Reader
    from llmscale_env.workload.served.client import Prometheus, label_matchers

    options = parse_options(words, KEYS)
    config = _config(options)
    options = {key: config[key] for key in _PLACE if config.get(key)} | options
    name = options.get("policy", config.get("policy", ""))
    if not name:
        raise Slip("policy= is missing, such as policy=hpa:kv_target=0.6")
    if "prometheus" not in options:
        raise Slip("prometheus= is missing, such as prometheus=http://localhost:9090")
    url = _url(options, "prometheus")
    every_s = _every_s(options, config)
    scrape_s = _seconds("scrape", options["scrape"]) if "scrape" in options else None
    selector = ""
    if "selector" in options:
        try:
            selector = label_matchers(options["selector"])
        except ValueError as error:
            raise Slip(f"selector = {options['selector']!r}: {error}") from None
    names = {key: _kubernetes_name(options, key) for key in _PLACE}
    exact = bool(selector or names["deployment"])
    selector = selector or _selector(names)
    port = whole(options, "port", 9108, 0, 65_535)
    turns = whole(options, "turns", 1, 1, 10**9) if "turns" in options else None
    token = _file(options, "prometheus_token_file")
    one_of(options, "apply", ("none", "scale"))
    needs("prometheus_client")
    cluster = _cluster(options, config, every_s)
    writer = _writer(options, cluster, names)
    log = Path(options["log"]) if "log" in options else None
    if log is not None:
        check_file("log", log)
    policy = _policy(name)
    from baselines.practice.seen import kv_capacity

    reader = Reader(
        Prometheus(url, token_file=token),
        every_s,
        cluster.max_instances,
        kv_capacity(cluster.scenario(1), 0),
        selector,
        names["namespace"],
        names["deployment"],
        scrape_s,
        cluster.load_s,
        exact,
    )
    return Asked(name, policy, cluster, reader, writer, log, port, turns)


def run(
    asked: Asked,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    wall: Callable[[], float] = time.time,
) -> int:
    """Decide every interval until `turns` are over or the command is interrupted.

    A turn that took longer than the interval lets the turns go by that it missed. `clock` paces the turns, so
    that nothing happens to them when the time of day (`wall`) is set.

    Raises:
        Slip: the port is taken.
    """
    from experiments.desk.serve.shadow import Exporter, Shadow, open_log

    shadow = Shadow(asked.policy, asked.cluster, asked.reader, asked.writer)
    exporter = Exporter(asked.name)
    every_s = asked.cluster.every_s
    with ExitStack() as stack:
        log = stack.enter_context(open_log(asked.log)) if asked.log else None
        if asked.port:
            try:
                stack.callback(exporter.serve(asked.port))
            except OSError as error:
                raise Slip(f"port = '{asked.port}': {error.strerror or error}") from None
        start_s, turn, done = clock(), 0, 0
        while True:
            _turn(shadow, exporter, log, turn, wall())
            done += 1
            if asked.turns is not None and done >= asked.turns:
                return 0
            turn = max(turn + 1, math.ceil((clock() - start_s) / every_s))
            sleep(min(every_s, max(0.0, start_s + turn * every_s - clock())))


def _turn(shadow: Shadow, exporter: Any, log: IO[str] | None, turn: int, at_s: float) -> None:
    from experiments.desk.serve.shadow import log_line

    decision = shadow.decide(turn, at_s)
    writer = shadow.writer
    exporter.add(decision, writer is not None and not writer.stopped)
    if log is not None:
        log.write(log_line(decision) + "\n")
    told = time.strftime("%H:%M:%S", time.localtime(at_s))
    print(f"{told}  {shadow.policy.name}: {decision.line()}", flush=True)


# ---- options ----


def _config(options: Mapping[str, str]) -> dict[str, Any]:
    """What the file of `config=` holds; {} without one."""
    if "config" not in options:
        return {}
    path = options["config"]
    try:
        found = read_yaml(Path(path))
    except (OSError, Unreadable) as error:
        what = error.strerror if isinstance(error, OSError) else error
        raise Slip(f"config = {path!r}: {what}") from None
    if not isinstance(found, dict):
        raise Slip(f"config = {path!r}: must hold keys and values")
    for key in found:
        if key not in CONFIG_KEYS:
            raise Slip(f"config = {path!r}: unknown key {key!r}{closest(str(key), CONFIG_KEYS)}")
    for key in ("policy", *_PLACE):
        if not isinstance(found.get(key, ""), str):
            raise Slip(f"config = {path!r}: {key} = {found[key]!r}: must be text")
    return found


def _seconds(key: str, text: str) -> float:
    """A time such as 30s, 2m or 15."""
    match = re.fullmatch(r"([0-9.]+)(s|m|)", text)
    try:
        found = float(match[1]) * (60.0 if match[2] == "m" else 1.0) if match else math.nan
    except ValueError:
        found = math.nan
    if not 1 <= found <= 3600:
        raise Slip(f"{key} = {text!r}: must be a time from 1s to 60m, such as 30s")
    return found


def _every_s(options: Mapping[str, str], config: Mapping[str, Any]) -> float:
    if "every" in options or "every_s" not in config:
        return _seconds("every", options.get("every", "30s"))
    return number({"every_s": str(config["every_s"])}, "every_s", 30.0, 1.0, 3600.0)


def _cluster(options: Mapping[str, str], config: Mapping[str, Any], every_s: float) -> Cluster:
    """What the policy is told of the cluster."""
    from experiments.desk.serve.seen import Cluster
    from llmscale_env.scenarios.load import ScenarioError

    merged = {key: str(config[key]) for key in CARDS if key in config} | {
        key: options[key] for key in CARDS if key in options
    }
    cluster = Cluster(
        merged.get("llm", "llama-3.1-8b"),
        merged.get("gpu", "a100-80gb"),
        whole(merged, "tp", 1, 1, 8),
        number(merged, "load_s", 180.0, 0.0, 86_400.0),
        whole(merged, "max_instances", 64, 1, 10_000),
        every_s,
        _targets(options, config),
    )
    try:
        cluster.scenario(1)
    except ScenarioError as error:
        raise Slip(" ".join(str(error).split())) from None
    return cluster


def _targets(options: Mapping[str, str], config: Mapping[str, Any]) -> tuple[Target, ...]:
    from experiments.desk.serve.seen import Target

    if "slo" in options or "targets" not in config:
        from experiments.desk.targets import slo_of

        found = slo_of(options.get("slo", "ttft:1,itl:0.05"))
        return tuple(Target(name or "all", *times) for name, times in found.items())
    rows = config["targets"]
    form = "targets: must be a list of {name, ttft_s, itl_s}, and perhaps attainment"
    if not isinstance(rows, list) or not rows:
        raise Slip(form)
    made = []
    for row in rows:
        if not isinstance(row, dict) or not {"name", "ttft_s", "itl_s"} <= row.keys():
            raise Slip(form)
        if row.keys() - {"name", "ttft_s", "itl_s", "attainment"}:
            raise Slip(f"{form}; {row} has others")
        texts = {key: str(value) for key, value in row.items()}
        times = [number(texts, key, 1.0, 0.0, 1e6, above=True) for key in ("ttft_s", "itl_s")]
        made.append(Target(texts["name"], *times))
    return tuple(made)


def _policy(name: str) -> Policy:
    """A reference policy, or a network.

    Raises:
        Slip: there is none of the name, a setting that it has not, one that decides other things than counts.
    """
    from baselines.make import POLICY_NAMES, make_policy
    from baselines.parameters import PolicyError
    from baselines.registry import POLICIES

    kind = name.partition(":")[0]
    if kind in POLICY_NAMES:
        family = POLICIES[kind.removesuffix("-tuned")].family
        if family != "pools":
            raise Slip(
                f"policy = {name!r}: does not decide how many pods there are (it is for {family})"
            )
        try:
            return make_policy(name)
        except PolicyError as error:
            raise Slip(f"policy = {name!r}: {error}") from None
    if not Path(name).exists():
        raise Slip(f"policy = {name!r}: unknown policy{closest(kind, POLICY_NAMES)}")
    needs("torch", "stable_baselines3")
    from agents.learned import LearnedPolicy
    from agents.models.store import ModelError

    try:
        return LearnedPolicy(name)
    except ModelError as error:
        raise Slip(f"policy = {name!r}: {error}") from None


def _url(options: Mapping[str, str], key: str) -> str:
    from llmscale_env.workload.served.client import is_address

    text = options[key]
    if not is_address(text):
        raise Slip(f"{key} = {text!r}: must be an address such as http://host:9090")
    return text


def _selector(names: Mapping[str, str]) -> str:
    """Label matchers of the pods of a namespace and a deployment, as far as they are named."""
    from llmscale_env.workload.served.client import deployment_pods

    space = f'namespace="{names["namespace"]}"' if names["namespace"] else ""
    pods = deployment_pods(names["deployment"]) if names["deployment"] else ""
    return ",".join(filter(None, (space, pods)))


def _kubernetes_name(options: Mapping[str, str], key: str) -> str:
    name = options.get(key, "")
    if name and not (re.fullmatch(_NAME, name) and len(name) <= 253):
        raise Slip(f"{key} = {name!r}: must be a name in Kubernetes: a-z, 0-9, '-' and '.'")
    return name


def _file(options: Mapping[str, str], key: str) -> Path | None:
    if key not in options:
        return None
    path = Path(options[key])
    try:
        path.read_bytes()
    except OSError as error:
        raise Slip(f"{key} = {options[key]!r}: {error.strerror}") from None
    return path


def _writer(
    options: Mapping[str, str], cluster: Cluster, names: Mapping[str, str]
) -> Writer | None:
    """Who writes; None unless `apply=scale`."""
    given = [key for key in _APPLY if key in options]
    if options.get("apply", "none") == "none":
        if given:
            raise Slip(f"{given[0]}=: is for apply=scale, which is not given")
        return None
    for key, example in (
        ("kubernetes", "https://host:6443"),
        ("namespace", "llm"),
        ("deployment", "vllm"),
    ):
        if key not in options:
            raise Slip(f"apply=scale needs {key}=, such as {key}={example}")
    from experiments.desk.serve.scale import Limits, ScaleApi, Writer

    most = whole(options, "max_replicas", cluster.max_instances, 1, 10_000)
    least = whole(options, "min_replicas", 1, 1, 10_000)
    if least > most:
        raise Slip(f"min_replicas = '{least}': must be at most max_replicas = {most}")
    if most > cluster.max_instances:
        raise Slip(
            f"max_replicas = '{most}': must be at most max_instances = {cluster.max_instances}"
        )
    limits = Limits(
        least,
        most,
        whole(options, "max_step", 4, 1, 10_000),
        number(options, "dead_after_s", 2 * cluster.every_s, 1.0, 3600.0),
    )
    api = ScaleApi(
        _url(options, "kubernetes"),
        names["namespace"],
        names["deployment"],
        _file(options, "token_file"),
        _file(options, "ca_file"),
    )
    return Writer(api, limits)


if __name__ == "__main__":
    sys.exit(main())

"""What runs the winner of an answer: Kubernetes manifests, or the configuration of `llmscale serve`.

    llmscale deploy answer=FILE.json namespace=NAME deployment=NAME out=FOLDER [policy=NAME] [...]
    (or: python -m experiments.desk.deploy ...)

    answer=FILE.json   what llmscale advise wrote
    namespace=NAME     of the Deployment that runs vLLM
    deployment=NAME    that is to be scaled
    out=FOLDER         where the files go
    policy=NAME        of the ranking (the winner; where none keeps the targets, name one)
    instances=N        for policy=static: so many replicas. Left out: the tuned ones, or where they
                       miss a target those that the answer found with hindsight
    prometheus=URL     that scrapes vLLM (http://prometheus-operated.monitoring.svc:9090), for KEDA

What is written depends on the policy:

    hpa      hpa.yaml: a HorizontalPodAutoscaler (autoscaling/v2); prometheus-adapter.yaml: the
             rules by which prometheus-adapter gives it vLLM's metrics; serve.yaml
    keda     scaledobject.yaml: a ScaledObject (keda.sh/v1alpha1) with queries of vLLM's metrics;
             serve.yaml
    static   scale.yaml alone: the number of replicas
    others   serve.yaml: policy, LLM, GPU, targets and place, for llmscale serve
             config=serve.yaml; those that need what vLLM does not tell are refused

Limits, targets and windows are the tuned ones. What a manifest cannot say of the simulated rule
stands in comments at its head: read them before you apply it. Exit codes: 0, 2 for a slip.

Examples:
    llmscale deploy answer=answer.json namespace=llm deployment=vllm out=deploy
    llmscale deploy answer=answer.json namespace=llm deployment=vllm out=keda policy=keda
    llmscale deploy answer=a.json namespace=llm deployment=vllm out=f policy=static instances=3
    llmscale serve config=deploy/serve.yaml prometheus=http://prometheus.monitoring:9090
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from experiments.desk.answer import Answer, Question, Ranked, read_answer
from experiments.desk.page import NOTHING_YET
from llmscale_env._cli import Slip, check_folder, parse_options, run_command, whole
from llmscale_env._writing import replace_files
from llmscale_env.workload.served.client import deployment_pods, is_address

if TYPE_CHECKING:
    from baselines.fleet import UniformParameters
    from baselines.hpa import HpaParameters
    from baselines.practice.keda import KedaParameters
    from baselines.static import StaticPolicy

PROMETHEUS = "http://prometheus-operated.monitoring.svc:9090"
"""The service that the Prometheus Operator makes for its servers."""

SYNC_S = 15
"""Kubernetes' `--horizontal-pod-autoscaler-sync-period`, which an autoscaler of its own cannot change."""

USUAL_ROUTER = "jsq-requests"
"""By which advise routes where a policy names no router."""

DEFAULT_TOLERANCE = 0.1
"""Kubernetes' `--horizontal-pod-autoscaler-tolerance`."""

FILES = ("hpa.yaml", "prometheus-adapter.yaml", "scaledobject.yaml", "scale.yaml", "serve.yaml")
"""All names that are written; which of them depends on the policy."""

RUNS_ON = {"hpa": "HPA", "keda": "KEDA", "static": "a replica count"}
"""Policies that Kubernetes runs, and as what."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class Place(NamedTuple):
    """Where vLLM runs.

    Attributes:
        namespace, deployment: of Kubernetes.
        prometheus: address of the server that scrapes it.
    """

    namespace: str
    deployment: str
    prometheus: str


class Metric(NamedTuple):
    """Something that vLLM counts, summed over its pods.

    Kubernetes compares in thousandths, too coarse for a low share of KV memory: it is asked for in percent.

    Attributes:
        exposed: name by which prometheus-adapter gives it (a metric of Kubernetes has no colon).
        found_by: a series of vLLM that is there when the metric is.
        selector: the series that are summed: a name, or a matcher of names.
        times: what a sum is multiplied by.
    """

    exposed: str
    found_by: str
    selector: str
    times: int = 1

    def query(self, matchers: str) -> str:
        """PromQL: the sum over the series with these labels."""
        scale = f"{self.times} * " if self.times != 1 else ""
        if self.selector.startswith("__name__"):
            return f"{scale}sum({{{self.selector},{matchers}}})"
        return f"{scale}sum({self.selector}{{{matchers}}})"


METRICS = {
    "queue": Metric(
        "vllm_num_requests_waiting", "vllm:num_requests_waiting", "vllm:num_requests_waiting"
    ),
    "kv": Metric(
        "vllm_kv_cache_usage_percent",
        "vllm:kv_cache_usage_perc",
        "vllm:kv_cache_usage_perc",
        times=100,
    ),
    "concurrency": Metric(
        "vllm_num_requests",
        "vllm:num_requests_running",
        '__name__=~"vllm:num_requests_(waiting|running)"',
    ),
}
"""By the name that `HpaPolicy` gives them. vLLM counts preempted requests among those that wait."""


def write_manifests(
    answer: Answer,
    ranked: Ranked,
    folder: Path,
    *,
    namespace: str = "default",
    deployment: str = "vllm",
    prometheus: str = PROMETHEUS,
) -> list[Path]:
    """Write what runs a policy of an answer: all files, or none.

    Args:
        answer: what `llmscale advise` found out.
        ranked: the policy.
        folder: where the files go; it is made.
        namespace, deployment: what is scaled.
        prometheus: address of the server that scrapes vLLM.

    Returns:
        The files written, the one that matters first.

    Raises:
        Slip: a name that Kubernetes refuses, an address that is none, settings that the policy refuses,
            files of another policy in the folder.
        OSError: a file cannot be written.
    """
    place = _place(namespace, deployment, prometheus)
    files = _files(answer, ranked, place)
    folder.mkdir(parents=True, exist_ok=True)
    if others := [name for name in FILES if name not in files and (folder / name).exists()]:
        raise Slip(f"{folder}: holds {', '.join(others)} of another policy; name another folder")
    return replace_files({folder / name: partial(_put, text) for name, text in files.items()})


def lacking(answer: Answer, name: str) -> str:
    """What a policy of the ranking needs and no real cluster tells; "": it can run on one."""
    return _lacking(answer.question, {name: answer.of(name).spelled})[name]


def runs_on(asked: Question, policies: Mapping[str, str]) -> dict[str, str]:
    """What runs each policy on a real cluster.

    Args:
        asked: the cluster.
        policies: as `policies=` takes them, by name.
    """
    lacks = _lacking(asked, policies)
    return {
        name: RUNS_ON.get(name, NOTHING_YET if lacks[name] else "llmscale serve")
        for name in policies
    }


def _lacking(asked: Question, policies: Mapping[str, str]) -> dict[str, str]:
    """What each policy needs and no real cluster tells; "": it can run on one."""
    from baselines import make_policy
    from experiments.desk.serve.seen import Cluster, Target, needs, trial
    from llmscale_env.control.simulation import ClusterSimulation

    found = dict.fromkeys(policies, "")
    tried = [name for name in policies if name not in RUNS_ON]
    if not tried:
        return found
    cluster = Cluster(
        asked.llm,
        asked.gpu,
        asked.tp,
        asked.load_s,
        max(1, asked.max_gpus // asked.tp),
        asked.control_interval_s or 30.0,
        tuple(Target(t.name, t.ttft_s, t.itl_s) for t in asked.targets),
    )
    simulation = ClusterSimulation(trial(cluster))
    for name in tried:
        found[name] = needs(make_policy(policies[name]), cluster, simulation)
    return found


def _put(text: str, part: Path) -> None:
    part.write_text(text, encoding="utf-8")


def _place(namespace: str, deployment: str, prometheus: str) -> Place:
    for key, name in (("namespace", namespace), ("deployment", deployment)):
        if not _NAME.fullmatch(name):
            raise Slip(
                f"{key} = {name!r}: must be at most 63 lower-case letters, digits and '-', "
                "with a letter or digit at both ends"
            )
    if not is_address(prometheus):
        raise Slip(
            f"prometheus = {prometheus!r}: must be an address such as http://prometheus:9090"
        )
    return Place(namespace, deployment, prometheus)


def _files(answer: Answer, ranked: Ranked, place: Place) -> dict[str, str]:
    # The policies take seconds to import: a slip of the command line is answered before.
    from baselines.hpa import HpaPolicy
    from baselines.make import make_policy
    from baselines.parameters import PolicyError
    from baselines.practice.keda import KedaPolicy
    from baselines.static import StaticPolicy

    try:
        policy: Any = make_policy(ranked.policy, **ranked.settings)
    except PolicyError as error:
        if ranked.policy in ("hpa", "keda", "static"):
            raise Slip(f"{ranked.policy} of the answer: {error}") from None
        policy = None  # a network, say, which only `serve` knows how to make
    serve = {"serve.yaml": _serve(answer, ranked, policy, place)}
    if isinstance(policy, HpaPolicy):
        manifests = {
            "hpa.yaml": _hpa(answer, policy.parameters, place),
            "prometheus-adapter.yaml": _adapter(policy.parameters, place),
        }
        return manifests | serve
    if isinstance(policy, KedaPolicy):
        return {"scaledobject.yaml": _scaled_object(answer, policy.parameters, place)} | serve
    if isinstance(policy, StaticPolicy):
        return {"scale.yaml": _scale(answer, ranked, policy, place)}
    return serve


def _most(answer: Answer) -> int:
    return max(1, answer.question.max_gpus // answer.question.tp)


def _hpa(answer: Answer, settings: HpaParameters, place: Place) -> str:
    notes = _common_notes(answer, settings)
    targets = _targets(settings)
    least = min(settings.min_instances, _most(answer))
    period = _whole("period_s", settings.period_s, 1, 1800, notes)
    if settings.period_s != SYNC_S:
        notes.append(
            f"The simulated rule looks every {settings.period_s:g} s. Kubernetes looks every {SYNC_S} s "
            "unless kube-controller-manager has another --horizontal-pod-autoscaler-sync-period."
        )
    grow = _whole("up_factor in percent", 100 * (settings.up_factor - 1), 1, 10**6, notes)
    shrink = _whole("down_factor in percent", 100 * (1 - settings.down_factor), 1, 100, notes)
    up: dict[str, Any] = {
        "stabilizationWindowSeconds": _whole("up_window_s", settings.up_window_s, 0, 3600, notes),
        "selectPolicy": "Max",
        "policies": [{"type": "Percent", "value": grow, "periodSeconds": period}],
    }
    if settings.up_count:  # Kubernetes refuses a policy that allows nothing
        up["policies"].append({"type": "Pods", "value": settings.up_count, "periodSeconds": period})
    down: dict[str, Any] = {
        "stabilizationWindowSeconds": _whole(
            "down_window_s", settings.down_window_s, 0, 3600, notes
        ),
        "policies": [{"type": "Percent", "value": shrink, "periodSeconds": period}],
    }
    if settings.tolerance != DEFAULT_TOLERANCE:
        tolerance = _thousandths("tolerance", settings.tolerance, notes, least=0)
        for rules in (up, down):
            rules["tolerance"] = _milli(tolerance)
        notes.append(
            "The field tolerance needs Kubernetes 1.33 or newer with its feature gate "
            f"HPAConfigurableTolerance. Without it the tolerance is {DEFAULT_TOLERANCE:g}."
        )
    metrics = [
        {
            "type": "External",
            "external": {
                "metric": {"name": METRICS[name].exposed},
                "target": {
                    "type": "AverageValue",
                    "averageValue": _milli(_asked(name, target, notes)),
                },
            },
        }
        for name, target in targets.items()
    ]
    manifest = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": place.deployment, "namespace": place.namespace},
        "spec": {
            "scaleTargetRef": _deployment(place),
            "minReplicas": least,
            "maxReplicas": _most(answer),
            "metrics": metrics,
            "behavior": {"scaleUp": up, "scaleDown": down},
        },
    }
    head = [
        "kubectl apply -f hpa.yaml, once prometheus-adapter has the rules of prometheus-adapter.yaml.",
        "Metrics are External ones with an average value: totals over all pods, divided by the replicas "
        "that there are, ready or not. So does the simulated rule, and loading pods are not ordered twice.",
    ]
    return _document(manifest, [*head, *notes])


def _targets(settings: HpaParameters) -> dict[str, float]:
    found = {name: getattr(settings, f"{name}_target") for name in METRICS}
    return {name: target for name, target in found.items() if target is not None}


def _adapter(settings: HpaParameters, place: Place) -> str:
    rules = [
        {
            "seriesQuery": f'{METRICS[name].found_by}{{namespace!="",pod!=""}}',
            "resources": {"overrides": {"namespace": {"resource": "namespace"}}},
            "name": {"as": METRICS[name].exposed},
            "metricsQuery": METRICS[name].query(
                f"<<.LabelMatchers>>,{deployment_pods(place.deployment)}"
            ),
        }
        for name in _targets(settings)
    ]
    manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"{place.deployment}-adapter-rules"[:253],
            "namespace": place.namespace,
        },
        "data": {"config.yaml": _yaml({"externalRules": rules})},
    }
    head = [
        "Rules for prometheus-adapter. It reads one configuration only: add these externalRules to its own "
        "(with its Helm chart: the list under rules.external), and do not replace it by this file.",
        "Prometheus must attach the labels namespace and pod, as the Prometheus Operator's monitors do.",
        f"They count the pods of the Deployment {place.deployment}, by their names. vLLM before its engine "
        "V1 has vllm:gpu_cache_usage_perc for vllm:kv_cache_usage_perc.",
    ]
    return _document(manifest, head)


def _scaled_object(answer: Answer, settings: KedaParameters, place: Place) -> str:
    most = _most(answer)
    notes = _common_notes(answer, settings)
    period = _whole("period_s", settings.period_s, 1, 1800, notes)
    matchers = f'namespace="{place.namespace}",{deployment_pods(place.deployment)}'
    triggers: list[dict[str, Any]] = []
    for name, target in (("queue", settings.queue_target), ("kv", settings.kv_target)):
        threshold = _asked(name, target, notes) / 1000
        trigger: dict[str, Any] = {
            "type": "prometheus",
            "name": name,
            "metricType": "AverageValue",
            "metadata": {
                "serverAddress": place.prometheus,
                "query": METRICS[name].query(matchers),
                "threshold": f"{threshold:g}",
                # No pod that serves is a missing metric, and leaves the fleet as it is; not a zero.
                "ignoreNullValues": "false",
            },
        }
        if period > SYNC_S:
            trigger["useCachedMetrics"] = True
        triggers.append(trigger)
    if settings.period_s < SYNC_S:
        notes.append(
            f"The simulated rule looks every {settings.period_s:g} s. The autoscaler behind KEDA looks "
            f"every {SYNC_S} s, unless kube-controller-manager is told otherwise."
        )
    notes.append(
        f"The simulated rule has no tolerance. The autoscaler behind KEDA changes nothing within "
        f"{100 * DEFAULT_TOLERANCE:g} % of a target, and a ScaledObject has no field for that."
    )
    at_once = {"stabilizationWindowSeconds": 0, "selectPolicy": "Max"}
    manifest = {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": place.deployment, "namespace": place.namespace},
        "spec": {
            "scaleTargetRef": _deployment(place),
            "pollingInterval": period,
            "minReplicaCount": min(settings.min_instances, most),
            "maxReplicaCount": most,
            "advanced": {
                "horizontalPodAutoscalerConfig": {
                    "behavior": {
                        "scaleUp": {
                            **at_once,
                            "policies": [{"type": "Pods", "value": most, "periodSeconds": SYNC_S}],
                        },
                        "scaleDown": {
                            **at_once,
                            "policies": [
                                {"type": "Percent", "value": 100, "periodSeconds": SYNC_S}
                            ],
                        },
                    }
                }
            },
            "triggers": triggers,
        },
    }
    head = [
        "kubectl apply -f scaledobject.yaml, where KEDA 2.12 or newer runs.",
        "The simulated rule goes up and down at once and by any number. So the windows of the autoscaler "
        "behind KEDA are 0 s here, and its steps as large as the fleet.",
        "Prometheus must attach the labels namespace and pod, as the Prometheus Operator's monitors do.",
    ]
    return _document(manifest, [*head, *notes])


def _fixed(answer: Answer, ranked: Ranked, policy: StaticPolicy) -> int:
    """Instances of a fixed fleet: those that its settings name, else those that it held."""
    from experiments.desk.advising.case import POOL

    named = policy.parameters.instances.get(POOL, policy.parameters.each)
    if named is not None:
        return max(1, named)
    return min(max(1, ranked.held_out.peak_gpus // answer.question.tp), _most(answer))


def _scale(answer: Answer, ranked: Ranked, policy: StaticPolicy, place: Place) -> str:
    replicas = _fixed(answer, ranked, policy)
    manifest = {
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": {"name": place.deployment, "namespace": place.namespace},
        "spec": {"replicas": replicas},
    }
    where = f"deployment {place.deployment} -n {place.namespace}"
    notes = [
        f"kubectl patch {where} --subresource=scale --type=merge --patch-file=scale.yaml",
        f"The same by hand: kubectl scale {where} --replicas={replicas}",
        "Remove any autoscaler of the Deployment first: it would change the number again.",
        *_instance_notes(answer, policy.parameters.batch_limit),
        _route_note(policy.parameters.router),
    ]
    return _document(manifest, notes)


def _serve(answer: Answer, ranked: Ranked, policy: Any, place: Place) -> str:
    from baselines.fleet import UniformParameters

    question, settings = answer.question, getattr(policy, "parameters", None)
    period = getattr(settings, "period_s", None)
    config = {
        "policy": ranked.spelled,
        "namespace": place.namespace,
        "deployment": place.deployment,
        "llm": question.llm,
        "gpu": question.gpu,
        "tp": question.tp,
        "load_s": question.load_s,
        "max_instances": _most(answer),
        "every_s": question.control_interval_s or period or ranked.series.interval_s,
        "targets": [target.model_dump() for target in question.targets],
    }
    notes = [
        "llmscale serve config=serve.yaml prometheus=http://...: it logs what the policy would order, and "
        "changes nothing unless told to.",
        "every_s is the time between two decisions in the simulation. Prometheus should scrape as often; "
        "with every_s longer, a policy without a period of its own is not the one that was judged.",
    ]
    if isinstance(settings, UniformParameters):
        notes += _common_notes(answer, settings)
    else:
        notes += [*_instance_notes(answer, None), _route_note(None)]
    return _document(config, notes)


def _deployment(place: Place) -> dict[str, str]:
    return {"apiVersion": "apps/v1", "kind": "Deployment", "name": place.deployment}


def _instance_notes(answer: Answer, batch_limit: int | None) -> list[str]:
    question = answer.question
    notes = [
        f"An instance is a pod with {question.llm} on {question.tp} GPU(s) of {question.gpu} "
        f"(--tensor-parallel-size {question.tp}). It was assumed to serve {question.load_s:g} s after "
        "it is ordered; its readiness probe must not pass before vLLM serves."
    ]
    if batch_limit is not None:
        notes.append(
            f"No autoscaler sets the limit of running requests: start vLLM with --max-num-seqs {batch_limit}."
        )
    else:
        notes.append("vLLM's own --max-num-seqs for this GPU was assumed.")
    return notes


def _route_note(router: str | None) -> str:
    """How requests were routed; None: as advise does unless a policy has a router of its own."""
    router = router or USUAL_ROUTER
    least = " (fewest requests)" if router == USUAL_ROUTER else ""
    return (
        f"Requests were routed by {router}{least}. A Service of Kubernetes picks pods "
        "at random: use a gateway or a mesh that does the same."
    )


def _common_notes(answer: Answer, settings: UniformParameters) -> list[str]:
    """What the simulated rule decides and a manifest cannot."""
    notes = _instance_notes(answer, settings.batch_limit)
    if settings.controller != "fixed":
        notes.append(
            f"The simulated rule moves that limit while vLLM runs (controller {settings.controller}). "
            "vLLM cannot, so attainment may differ."
        )
    if settings.serving == "by-class":
        notes.append(
            "The simulated rule left queues and routes to classes of requests (serving by-class). It "
            "needs a gateway with the same queues in front of vLLM."
        )
    else:
        notes.append(_route_note(settings.router))
    if settings.initial is not None:
        notes.append(f"It began with {settings.initial} instances: set replicas of the Deployment.")
    if settings.load_source is not None:
        notes.append(f"Instances were assumed to load their weights by {settings.load_source}.")
    return notes


def _whole(name: str, value: float, low: int, high: int, notes: list[str]) -> int:
    """The integer that stands for a value; a note where it is another."""
    found = min(max(round(value), low), high)
    if abs(found - value) > 1e-9:
        notes.append(f"{name} is {value:.6g}; {found} is the nearest that Kubernetes takes.")
    return found


def _thousandths(name: str, value: float, notes: list[str], least: int = 1) -> int:
    """Kubernetes compares metrics in thousandths; a note where that shows."""
    found = max(least, round(1000 * value))
    if abs(found - 1000 * value) > 1e-6 * value * 1000:
        notes.append(
            f"{name} is {value:.6g}; Kubernetes computes in thousandths, so {found / 1000:g}."
        )
    return found


def _asked(name: str, target: float, notes: list[str]) -> int:
    """A metric's target in thousandths of the unit that it is asked for in."""
    metric = METRICS[name]
    unit = " in percent" if metric.times == 100 else ""
    return _thousandths(f"{name}_target{unit}", metric.times * target, notes)


def _milli(thousandths: int) -> str:
    """A quantity of Kubernetes."""
    return f"{thousandths}m" if thousandths % 1000 else str(thousandths // 1000)


class _Dumper(yaml.SafeDumper):
    """Text of several lines as a block."""


def _text(dumper: Any, text: str) -> Any:
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    )


_Dumper.add_representer(str, _text)


def _yaml(value: Any) -> str:
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=10_000)


def _printable(text: str) -> str:
    """A text in one line of YAML: without what ends a line there, or no stream of YAML may hold."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _document(value: Mapping[str, Any], comments: Sequence[str]) -> str:
    """YAML below its comments, one paragraph each."""
    lines = [
        line
        for comment in comments
        for line in textwrap.wrap(
            _printable(comment),
            100,
            initial_indent="# - ",
            subsequent_indent="#   ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    ]
    return "\n".join([*lines, _yaml(dict(value))])


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; see the module for exit codes."""
    return run_command("deploy", __doc__, words, _run)


_NEEDED = ("answer", "namespace", "deployment", "out")


def _run(words: list[str]) -> int:
    options = parse_options(words, (*_NEEDED, "policy", "instances", "prometheus"))
    if missing := [f"{key}=" for key in _NEEDED if key not in options]:
        raise Slip(f"{', '.join(missing)} must be given; see --help")
    answer = read_answer(Path(options["answer"]))
    name = options.get("policy", answer.winner)
    if "policy" not in options and not answer.of(name).keeps:
        raise Slip(_none_keeps(answer))
    ranking = [ranked.policy for ranked in answer.ranking]
    if name not in ranking:
        raise Slip(f"policy = {name!r}: must be one of {ranking}")
    folder = Path(options["out"])
    check_folder("out", folder)
    ranked, note = _chosen(options, answer, name)
    if lacks := lacking(answer, name):
        able = [each for each in ranking if each != name and not lacking(answer, each)]
        best = f"; the best of the ranking that can is policy={able[0]}" if able else ""
        raise Slip(f"policy = {name!r}: cannot run on a real cluster: {lacks}{best}")
    paths = write_manifests(
        answer,
        ranked,
        folder,
        namespace=options["namespace"],
        deployment=options["deployment"],
        prometheus=options.get("prometheus", PROMETHEUS),
    )
    if note:
        print(f"note: {note}")
    for path in paths:
        print(f"written: {path}")
    return 0


def _none_keeps(answer: Answer) -> str:
    """That there is nothing to deploy unless a policy is named, and which ones there are."""
    text = "no policy of the answer keeps every target: name one, such as "
    if answer.affordable is not None:
        held = f"policy=static instances={answer.affordable.instances}"
        text += f"{held} (a fixed fleet that would have), or "
    return f"{text}policy={answer.winner} (the nearest, which misses)"


def _chosen(options: Mapping[str, str], answer: Answer, name: str) -> tuple[Ranked, str]:
    """The policy with the settings that are written, and what is to be known of them.

    Raises:
        Slip: instances of a policy that is no fixed fleet.
    """
    ranked, fixed = answer.of(name), answer.fixed
    missed = "" if ranked.keeps else f"{name} misses a target on the held-out part; {ranked.needs}"
    if "instances" in options:
        if name != "static":
            raise Slip(f"instances = {options['instances']!r}: is for policy=static, not {name}")
        count, limit = whole(options, "instances", 1, 1, 10_000), ranked.settings.get("batch_limit")
        missed = ""
        if fixed is None or count < fixed.instances:
            missed = f"no fixed fleet of {count} is known to keep every target of the answer"
    elif name == "static" and (held := answer.affordable) is not None and not ranked.keeps:
        count, limit = held.instances, held.batch_limit
        missed = (
            f"the tuned fixed fleet misses a target; written are the {count} instances that would "
            "have kept them, found with hindsight"
        )
    else:
        return ranked, missed
    from experiments.desk.advising.search import fixed_settings

    settings = fixed_settings(count, limit)
    return ranked.model_copy(update={"settings": settings}), missed


if __name__ == "__main__":
    sys.exit(main())

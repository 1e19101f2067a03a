"""Manifests of an answer: they say what the simulated rule does, and the published schemas take them."""

from __future__ import annotations

import math
import random
import re
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from baselines.hpa import HpaParameters, recommendation, within_a_step
from baselines.make import make_policy
from baselines.practice.keda import wanted_replicas
from experiments.desk.answer import Answer
from experiments.desk.deploy import FILES, main, write_manifests
from experiments.desk.serve.command import CONFIG_KEYS
from llmscale_env._cli import Slip
from tests.answers import made_answer, written

KUBERNETES = ("1.27", "1.33", "1.37")
"""Versions whose published schemas take what we write; a tolerance needs 1.33."""

# What the CustomResourceDefinition scaledobjects.keda.sh of KEDA 2.16 allows, of the fields that we write.
_RULES = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "stabilizationWindowSeconds": {"type": "integer", "minimum": 0, "maximum": 3600},
        "selectPolicy": {"enum": ["Max", "Min", "Disabled"]},
        "policies": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["type", "value", "periodSeconds"],
                "properties": {
                    "type": {"enum": ["Pods", "Percent"]},
                    "value": {"type": "integer", "minimum": 1},
                    "periodSeconds": {"type": "integer", "minimum": 1, "maximum": 1800},
                },
            },
        },
    },
}


def _closed(required: str, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": required.split(),
        "properties": properties,
    }


_TEXT, _COUNT = {"type": "string"}, {"type": "integer", "minimum": 0}
SCALED_OBJECT = _closed(
    "apiVersion kind metadata spec",
    apiVersion={"const": "keda.sh/v1alpha1"},
    kind={"const": "ScaledObject"},
    metadata=_closed("name", name=_TEXT, namespace=_TEXT),
    spec=_closed(
        "scaleTargetRef triggers",
        scaleTargetRef=_closed("name", apiVersion=_TEXT, kind=_TEXT, name=_TEXT),
        pollingInterval=_COUNT,
        cooldownPeriod=_COUNT,
        minReplicaCount=_COUNT,
        maxReplicaCount=_COUNT,
        advanced=_closed(
            "",
            horizontalPodAutoscalerConfig=_closed(
                "", name=_TEXT, behavior=_closed("", scaleUp=_RULES, scaleDown=_RULES)
            ),
        ),
        triggers={
            "type": "array",
            "minItems": 1,
            "items": _closed(
                "type metadata",
                type={"const": "prometheus"},
                name=_TEXT,
                metricType={"enum": ["AverageValue", "Value"]},
                useCachedMetrics={"type": "boolean"},
                # Of its prometheus trigger, as documented; values are texts, whatever they say.
                metadata=_closed(
                    "serverAddress query threshold",
                    serverAddress=_TEXT,
                    query=_TEXT,
                    threshold={"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?$"},
                    ignoreNullValues={"enum": ["true", "false"]},
                ),
            ),
        },
    ),
)


def made(policy: str, settings: dict[str, Any] | None = None, **question: Any) -> Answer:
    """An answer with one policy, which wins."""
    answer = made_answer([policy], **question)
    if settings is None:
        return answer
    ranked = answer.ranking[0].model_copy(update={"settings": settings})
    return answer.model_copy(update={"ranking": (ranked,)})


def manifests(answer: Answer, folder: Path, **where: str) -> dict[str, Any]:
    """What is written for the winner, by file."""
    paths = write_manifests(answer, answer.of(answer.winner), folder, **where)
    written = sorted(path.name for path in folder.iterdir() if path.is_file())
    assert written == sorted(path.name for path in paths)
    return {path.name: yaml.safe_load(path.read_text()) for path in paths}


def quantity(text: str) -> float:
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)


def by_kubernetes(hpa: dict[str, Any], totals: dict[str, float], replicas: int) -> int:
    """Kubernetes' replicas at steady recommendations, from a manifest (its documented algorithm)."""
    rules = hpa["spec"]["behavior"]
    best = 0
    for metric in hpa["spec"]["metrics"]:
        average = quantity(metric["external"]["target"]["averageValue"])
        total = totals[metric["external"]["metric"]["name"]]
        ratio = total / (average * replicas)
        side = rules["scaleUp"] if ratio > 1 else rules["scaleDown"]
        if abs(ratio - 1) <= quantity(side.get("tolerance", "100m")) + 1e-9:
            best = max(best, replicas)
        else:
            best = max(best, math.ceil(round(total / average, 9)))
    best = max(best, hpa["spec"]["minReplicas"])
    limits = []
    for policy in rules["scaleUp" if best > replicas else "scaleDown"]["policies"]:
        sign = 1 if best > replicas else -1
        if policy["type"] == "Pods":
            limits.append(replicas + sign * policy["value"])
        else:
            changed = round(replicas * (1 + sign * policy["value"] / 100), 9)
            limits.append(math.ceil(changed) if sign > 0 else math.floor(changed))
    best = min(best, max(limits)) if best > replicas else max(best, min(limits))
    return min(best, hpa["spec"]["maxReplicas"])


HPA_SETTINGS: list[dict[str, Any]] = [
    {},
    {"queue_target": 4.5, "kv_target": 0.123, "down_window_s": 75.0},
    {"queue_target": None, "kv_target": None, "concurrency_target": 32.0, "up_count": 0},
    {"queue_target": 2.0, "concurrency_target": 16.0, "tolerance": 0.05, "down_factor": 0.5},
    {"tolerance": 0.0, "up_factor": 1.25, "up_count": 1, "period_s": 30.0, "min_instances": 3},
]


@pytest.mark.parametrize("settings", HPA_SETTINGS)
def test_an_hpa_orders_what_the_simulated_rule_does(settings: dict[str, Any], tmp_path: Path):
    hpa = manifests(made("hpa", settings), tmp_path)["hpa.yaml"]
    rule = HpaParameters(**settings)
    targets = {
        name: target
        for name in ("queue", "kv", "concurrency")
        if (target := getattr(rule, f"{name}_target")) is not None
    }
    names = {
        "queue": "vllm_num_requests_waiting",
        "kv": "vllm_kv_cache_usage_percent",
        "concurrency": "vllm_num_requests",
    }
    assert [m["external"]["metric"]["name"] for m in hpa["spec"]["metrics"]] == [
        names[name] for name in targets
    ]
    draw = random.Random(3)
    moved = 0
    for _ in range(2000):
        have = draw.randint(rule.min_instances, 40)
        demand = {n: t * have * draw.choice((draw.uniform(0, 4), 1.0)) for n, t in targets.items()}
        wanted = max(recommendation(have, demand, targets, rule.tolerance), rule.min_instances)
        wanted = within_a_step(wanted, have, rule.up_factor, rule.up_count, rule.down_factor)
        wanted = min(max(wanted, rule.min_instances), 60)
        totals = {names[n]: 100 * v if n == "kv" else v for n, v in demand.items()}
        assert by_kubernetes(hpa, totals, have) == wanted, (have, demand)
        moved += wanted != have
    assert moved > 500


@pytest.mark.parametrize("settings", HPA_SETTINGS)
def test_what_is_for_kubernetes_passes_its_schemas(settings: dict[str, Any], tmp_path: Path):
    files = manifests(made("hpa", settings), tmp_path)
    tolerant = settings.get("tolerance", 0.1) != 0.1
    for version in KUBERNETES:
        for name in ("hpa.yaml", "prometheus-adapter.yaml"):
            if tolerant and name == "hpa.yaml" and version == "1.27":
                with pytest.raises(kubernetes_validate.ValidationError):
                    kubernetes_validate.validate(files[name], version, strict=True)
            else:
                kubernetes_validate.validate(files[name], version, strict=True)


def test_windows_of_an_hpa_are_those_of_the_rule(tmp_path: Path):
    settings = {"up_window_s": 30.0, "down_window_s": 240.0}
    spec = manifests(made("hpa", settings), tmp_path, namespace="llm", deployment="chat")[
        "hpa.yaml"
    ]
    assert spec["metadata"] == {"name": "chat", "namespace": "llm"}
    spec = spec["spec"]
    assert spec["scaleTargetRef"] == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "name": "chat",
    }
    assert spec["behavior"]["scaleUp"]["stabilizationWindowSeconds"] == 30
    assert spec["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 240


def test_replicas_are_instances_of_several_gpus(tmp_path: Path):
    files = manifests(made("hpa", {}, tp=8, max_gpus=60), tmp_path)
    assert files["hpa.yaml"]["spec"]["maxReplicas"] == 7
    assert files["serve.yaml"]["max_instances"] == 7


def test_what_a_manifest_cannot_say_is_told(tmp_path: Path):
    settings = {
        "queue_target": 4.00039, "period_s": 10.0, "batch_limit": 96, "initial": 4, "tolerance": 0.2,
        "down_window_s": 90.4,
    }  # fmt: skip
    manifests(made("hpa", settings), tmp_path)
    text = (tmp_path / "hpa.yaml").read_text()
    comments = " ".join(line.strip("# -") for line in text.splitlines() if line.startswith("#"))
    for word in ("--max-num-seqs 96", "sync-period", "thousandths", "HPAConfigurableTolerance"):
        assert word in comments
    assert "90.4" in comments
    assert "jsq-requests" in comments
    hpa = yaml.safe_load(text)["spec"]
    assert hpa["metrics"][0]["external"]["target"]["averageValue"] == "4"
    plain = tmp_path / "plain"
    manifests(made("hpa", {}), plain)
    assert "thousandths" not in (plain / "hpa.yaml").read_text()


@pytest.mark.parametrize("end", ["\n", "\r", "\x85", "\u2028", "\u2029", "\x0b", "\x00", "\x1b"])
@pytest.mark.parametrize("field", ["llm", "gpu"])
@pytest.mark.parametrize("policy", ["hpa", "keda", "static", "twin"])
def test_nothing_ends_a_comment(policy: str, field: str, end: str, tmp_path: Path):
    plain = manifests(made(policy), tmp_path / "plain")
    name = f"x{end}spec:{end}  replicas: 666{end}#"
    for file, found in manifests(made(policy, **{field: name}), tmp_path).items():
        if file == "serve.yaml":
            assert found.pop(field) == name
            del plain[file][field]
        assert found == plain[file]


def test_the_adapter_exposes_every_metric_of_the_hpa(tmp_path: Path):
    settings = {"concurrency_target": 20.0}
    files = manifests(made("hpa", settings), tmp_path, deployment="chat")
    rules = yaml.safe_load(files["prometheus-adapter.yaml"]["data"]["config.yaml"])["externalRules"]
    asked = [m["external"]["metric"]["name"] for m in files["hpa.yaml"]["spec"]["metrics"]]
    assert [rule["name"]["as"] for rule in rules] == asked
    for rule in rules:
        assert "<<.LabelMatchers>>" in rule["metricsQuery"]
        assert rule["resources"]["overrides"] == {"namespace": {"resource": "namespace"}}
    queries = "\n".join(rule["metricsQuery"] for rule in rules)
    for name in ("num_requests_waiting", "kv_cache_usage_perc", "num_requests_(waiting|running)"):
        assert f"vllm:{name}" in queries
    pattern = re.search(r'pod=~"(.*?)"\}', queries)
    assert pattern is not None
    assert re.fullmatch(pattern[1], "chat-7d9f8c6b5-x2x9k")
    assert not re.fullmatch(pattern[1], "chat-embeddings-7d9f8c6b5-x2x9k")


@pytest.mark.parametrize(
    "settings", [{}, {"queue_target": 6.25, "kv_target": 0.037}, {"period_s": 60.0}]
)
def test_a_scaled_object_orders_what_the_simulated_rule_does(
    settings: dict[str, Any], tmp_path: Path
):
    found = manifests(
        made("keda", settings), tmp_path, namespace="llm", prometheus="https://prom.example:9090"
    )
    scaled = found["scaledobject.yaml"]
    jsonschema.validate(scaled, SCALED_OBJECT)
    spec = scaled["spec"]
    queue, kv = spec["triggers"]
    assert "vllm:num_requests_waiting{" in queue["metadata"]["query"]
    assert "vllm:kv_cache_usage_perc{" in kv["metadata"]["query"]
    for trigger in (queue, kv):
        assert trigger["metadata"]["serverAddress"] == "https://prom.example:9090"
        assert 'namespace="llm"' in trigger["metadata"]["query"]
        assert trigger["metricType"] == "AverageValue"
        assert trigger.get("useCachedMetrics", False) == (settings.get("period_s", 15) > 15)
    assert spec["pollingInterval"] == settings.get("period_s", 15)
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert {side["stabilizationWindowSeconds"] for side in behavior.values()} == {0}
    # From any fleet to any other in one step.
    (up,), (down,) = (behavior[side]["policies"] for side in ("scaleUp", "scaleDown"))
    assert up["value"] >= spec["maxReplicaCount"] - spec["minReplicaCount"]
    assert (down["type"], down["value"]) == ("Percent", 100)
    rule = make_policy("keda", **settings).parameters
    draw = random.Random(5)
    for _ in range(500):
        waiting, used = draw.uniform(0, 400), draw.uniform(0, 30)
        thresholds = [float(t["metadata"]["threshold"]) for t in (queue, kv)]
        wanted = max(
            math.ceil(round(v / t, 9))
            for v, t in zip((waiting, 100 * used), thresholds, strict=True)
        )
        assert wanted == wanted_replicas(used, waiting, rule.kv_target, rule.queue_target)


def test_the_schema_of_keda_refuses_what_it_does_not_know(tmp_path: Path):
    scaled = manifests(made("keda"), tmp_path)["scaledobject.yaml"]
    scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleUp"][
        "tolerance"
    ] = "0"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(scaled, SCALED_OBJECT)


def test_a_fixed_fleet_is_a_number_of_replicas(tmp_path: Path):
    answer = made("static", {"each": 7, "batch_limit": 96}, tp=3)
    files = manifests(answer, tmp_path, deployment="chat")
    assert list(files) == ["scale.yaml"]
    assert files["scale.yaml"]["spec"] == {"replicas": 7}  # whatever it held at the peak
    named = made("static", {"each": 7, "instances": {"serving": 5}})
    assert manifests(named, tmp_path)["scale.yaml"]["spec"] == {"replicas": 5}
    unnamed = manifests(made("static", {}, tp=3), tmp_path)
    assert unnamed["scale.yaml"]["spec"] == {"replicas": 3}  # 9 GPUs
    for version in KUBERNETES:
        kubernetes_validate.validate(files["scale.yaml"], version, strict=True)


@pytest.mark.parametrize("policy", ["twin", "kpa", "hpa"])
def test_any_policy_has_a_runner(policy: str, tmp_path: Path):
    answer = made_answer([policy], classes=2, tp=2)
    config = manifests(answer, tmp_path)["serve.yaml"]
    assert set(config) <= set(CONFIG_KEYS)
    assert config["targets"] == [target.model_dump() for target in answer.question.targets]
    assert (config["llm"], config["gpu"], config["tp"]) == ("llama-3.1-8b", "h100-80gb", 2)
    assert config["load_s"] == 180
    made_again: Any = make_policy(config["policy"])
    assert made_again.parameters == make_policy(policy, **answer.ranking[0].settings).parameters
    period = getattr(made_again.parameters, "period_s", None)
    assert config["every_s"] == (period or 30.0)
    told = made_answer([policy], control_interval_s=5.0)
    assert manifests(told, tmp_path)["serve.yaml"]["every_s"] == 5.0


def test_a_policy_of_no_registry_has_a_runner_as_well(tmp_path: Path):
    ranked = made_answer(["twin"]).ranking[0]
    network = ranked.model_copy(update={"policy": "ppo", "spelled": "runs/ppo"})
    answer = made_answer(["twin"]).model_copy(update={"ranking": (network,), "winner": "ppo"})
    assert manifests(answer, tmp_path)["serve.yaml"]["policy"] == "runs/ppo"


@pytest.mark.parametrize(
    "where,words",
    [
        ({"namespace": "LLM"}, "namespace = 'LLM'"),
        ({"namespace": ""}, "namespace = ''"),
        ({"deployment": "a.b"}, "deployment = 'a.b'"),
        ({"deployment": 'x"} or vector(1) #'}, "deployment = "),
        ({"deployment": "a" * 64}, "at most 63"),
        ({"prometheus": "prometheus:9090"}, "prometheus = 'prometheus:9090'"),
        ({"prometheus": "http://"}, "must be an address"),
        ({"prometheus": "http://a:99999"}, "must be an address"),
        ({"prometheus": "http://a b"}, "must be an address"),
        ({"prometheus": 'http://a/x"y'}, "must be an address"),
        ({"prometheus": "http://a/x'y"}, "must be an address"),
        ({"prometheus": "http://a\x00"}, "must be an address"),
        ({"prometheus": "http://a:9\u2028x"}, "must be an address"),
        ({"prometheus": "http://user:pw@a:9090"}, "must be an address"),
    ],
)
def test_names_that_a_cluster_refuses_are_refused(
    where: dict[str, str], words: str, tmp_path: Path
):
    with pytest.raises(Slip, match=re.escape(words)):
        manifests(made("keda"), tmp_path / "out", **where)
    assert not (tmp_path / "out").exists()


def test_settings_that_the_policy_refuses_are_refused(tmp_path: Path):
    with pytest.raises(Slip, match="kv_target"):
        manifests(made("hpa", {"kv_target": -1}), tmp_path)


def test_files_of_another_policy_are_not_mixed_in(tmp_path: Path):
    manifests(made("hpa"), tmp_path)
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert set(before) < set(FILES)
    with pytest.raises(Slip, match=r"holds hpa.yaml"):
        write_manifests(made("keda"), made("keda").ranking[0], tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before
    manifests(made("hpa", {"kv_target": 0.9}), tmp_path)  # of the same policy they are replaced
    assert "'90'" in (tmp_path / "hpa.yaml").read_text()


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_command_writes_for_the_winner_or_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    answer = f"answer={written(made_answer(5), tmp_path / 'a.json')}"
    where = ("namespace=llm", "deployment=vllm")
    code, out, err = run(capsys, answer, *where, f"out={tmp_path / 'w'}")
    assert (code, err) == (0, "")
    assert str(tmp_path / "w" / "hpa.yaml") in out
    code, out, _ = run(capsys, answer, *where, f"out={tmp_path / 'k'}", "policy=keda")
    assert code == 0
    assert "note:" not in out
    code, out, _ = run(capsys, answer, *where, f"out={tmp_path / 't'}", "policy=kpa")
    assert code == 0
    assert "misses a target" in out  # and what would reach it
    assert (tmp_path / "t" / "serve.yaml").is_file()


def replicas(folder: Path) -> int:
    return int(yaml.safe_load((folder / "scale.yaml").read_text())["spec"]["replicas"])


def test_where_none_keeps_the_targets_a_policy_has_to_be_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    answer = f"answer={written(made_answer(3, keeps=False, fixed=11), tmp_path / 'a.json')}"
    where = ("namespace=llm", "deployment=vllm")
    code, _, err = run(capsys, answer, *where, f"out={tmp_path / 'none'}")
    assert code == 2
    assert "name one, such as policy=static instances=11 (a fixed fleet that would have)" in err
    assert not (tmp_path / "none").exists()
    code, out, _ = run(capsys, answer, *where, f"out={tmp_path / 'hpa'}", "policy=hpa")
    assert (code, out.count("note: hpa misses a target")) == (0, 1)


def test_a_fixed_fleet_may_be_the_one_found_with_hindsight_or_any(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    answer = f"answer={written(made_answer(3, keeps=False, fixed=11), tmp_path / 'a.json')}"
    where = ("namespace=llm", "deployment=vllm", "policy=static")
    code, out, _ = run(capsys, answer, *where, f"out={tmp_path / 'h'}")
    assert (code, replicas(tmp_path / "h")) == (0, 11)
    assert "found with hindsight" in out
    code, out, _ = run(capsys, answer, *where, f"out={tmp_path / 'n'}", "instances=11")
    assert (code, replicas(tmp_path / "n"), "note" in out) == (0, 11, False)
    code, out, _ = run(capsys, answer, *where, f"out={tmp_path / 'f'}", "instances=10")
    assert (code, replicas(tmp_path / "f"), "note" in out) == (0, 10, True)
    comments = (tmp_path / "n" / "scale.yaml").read_text()
    assert "--max-num-seqs 96" in comments
    assert "jsq-requests" in comments
    # More than max_gpus allows is written only where it is asked for.
    much = f"answer={written(made_answer(3, keeps=False, fixed=61), tmp_path / 'b.json')}"
    assert run(capsys, much, *where, f"out={tmp_path / 'm'}")[0] == 0
    assert replicas(tmp_path / "m") == 9


def test_the_shadow_is_told_where_it_looks_and_what_was_assumed(tmp_path: Path):
    for policy, settings in (("kpa", {"batch_limit": 96}), ("twin", None)):
        folder = tmp_path / policy
        found = manifests(made(policy, settings), folder, namespace="llm", deployment="chat")
        assert (found["serve.yaml"]["namespace"], found["serve.yaml"]["deployment"]) == (
            "llm",
            "chat",
        )
        comments = (folder / "serve.yaml").read_text()
        assert "--max-num-seqs" in comments
        assert "Requests were routed by" in comments


def test_a_policy_that_no_real_cluster_can_run_is_refused_with_the_best_that_can(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    answer = f"answer={written(made_answer(['paced', 'wva', 'hpa']), tmp_path / 'a.json')}"
    where = ("namespace=llm", "deployment=vllm", f"out={tmp_path / 'out'}")
    code, _, err = run(capsys, answer, *where)
    assert code == 2
    assert "policy = 'paced': cannot run on a real cluster: needs " in err
    assert err.rstrip().endswith("policy=wva")
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())
    assert run(capsys, answer, *where, "policy=wva")[0] == 0


@pytest.mark.parametrize(
    "words,says",
    [
        (("policy=hpb",), "policy = 'hpb': must be one of ['hpa', 'keda', 'static']"),
        (("instances=3",), "instances = '3': is for policy=static, not hpa"),
        (("namespace=Llm",), "namespace = 'Llm'"),
        (("replicas=3",), "replicas=3"),
        (("answer=nothing.json",), "nothing.json: cannot be read"),
    ],
)
def test_slips_are_told_in_a_line(
    words: tuple[str, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    usual = {
        "answer": str(written(made_answer(3), tmp_path / "a.json")),
        "namespace": "llm",
        "deployment": "vllm",
        "out": str(tmp_path / "out"),
    }
    usual |= dict(word.split("=") for word in words)
    code, out, err = run(capsys, *(f"{key}={value}" for key, value in usual.items()))
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1
    assert not list(tmp_path.glob("out/*"))


def test_what_is_missing_is_named(capsys: pytest.CaptureFixture[str]):
    code, _, err = run(capsys, "answer=a.json", "out=deploy")
    assert code == 2
    assert "namespace=, deployment= must be given" in err


def test_help_is_one_screen(capsys: pytest.CaptureFixture[str]):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert out.count("\n") <= 50
    assert len([line for line in out.splitlines() if line.startswith("    llmscale ")]) >= 3

"""What the chart renders: pods that the real commands and settings accept, and refusals of what
can't work.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import typer.main
import yaml

from cogr.settings import Settings, known_keys, load_settings
from indexers.rebuild.fleet.broker import queue_of
from indexers.workspace import Workspace
from ops.expander.app import create_app
from ops.expander.expander import make_parts
from tests.charts.conftest import CHART, URLS, Helm, Object, Render, containers, merged, one, pods

FILES = sorted(path.name for path in CHART.glob("values-*.yaml"))
GPU = {"worker": {"resources": {"limits": {"nvidia.com/gpu": 1}}}}
ALL = merged(
    {"settings": URLS},
    yaml.safe_load("""
        settings: {generator: {name: openai, model: m}}
        secretSettings:
          redis.url: {name: credentials, key: url}
          opensearch.password: {name: credentials, key: password}
          serving.token: {name: credentials, key: token}
          generator.openai.api_key: {name: credentials, key: api_key}
        worker: {sides: [item], keda: {enabled: true}, sharedMemory: 1Gi}
        rebuild: {item: {enabled: true}, query: {enabled: true}}
        update:
          item: {enabled: true}
          query: {enabled: true, sinceDays: 0, changedFile: /data/new.jsonl}
        training: {enabled: true, publish: true}
        vllm: {enabled: true, model: m}
        test: {search: true}
        data: {existingClaim: data}
        certificates: {secretName: ca}
        preflight: {enabled: true}
        expander:
          hpa: {enabled: true}
          ingress: {enabled: true, hosts: [a.example]}
          route: {enabled: true, parentRefs: [{name: gw}]}
        monitoring:
          pushgateway: http://pushgateway:9091
          serviceMonitor: {enabled: true}
          prometheusRule: {enabled: true}
          dashboards: {enabled: true}
    """),
)
CASES = [*FILES, "ALL"]
pytestmark = pytest.mark.slow


@pytest.fixture(params=CASES)
def objects(request: pytest.FixtureRequest, render: Render) -> list[Object]:
    """Each values file, and everything switched on."""
    return render(ALL) if request.param == "ALL" else render(file=request.param)


def settings_of(objects: list[Object], folder: Path) -> Settings:
    """The rendered cogr.toml, loaded as the commands load it."""
    config = next(o for o in objects if o["kind"] == "ConfigMap" and "cogr.toml" in o["data"])
    (folder / "cogr.toml").write_text(config["data"]["cogr.toml"])
    return load_settings(folder / "cogr.toml")


def test_every_type_of_value_arrives(render: Render, tmp_path: Path) -> None:
    given = {
        "keywords": {"weights": False},
        "dataset": {"path": '/a "quoted"\\ \u00e4\n', "dev_share": 0.25},
        "training": {"seed": 123456789, "item": {"learning_rate": 1e-6}},
        "publish": {"fields": ["a b c"]},
        **URLS,
    }
    settings = settings_of(render({"settings": given}), tmp_path)
    assert (settings.dataset.path, settings.dataset.dev_share) == (given["dataset"]["path"], 0.25)
    assert (settings.training.seed, settings.training.item.learning_rate) == (123456789, 1e-6)
    assert (settings.keywords.weights, settings.publish.fields) == (False, ("a b c",))


def command_of(name: str) -> Any:
    """The real command behind an entry point."""
    import indexers.cli
    import ops.cli
    import trainers.cli

    apps = {"cogr-index": indexers.cli.app, "cogr-train": trainers.cli.app, "cogr-ops": ops.cli.app}
    return typer.main.get_command(apps[name])


def parse(line: list[str]) -> dict[str, Any]:
    """Parameters of a command line, as the real command parses it; its own error where it would
    refuse.
    """
    command, rest = command_of(line[0]), line[1:]
    while commands := getattr(command, "commands", None):
        command, rest = commands[rest[0]], rest[1:]
    return dict(command.make_context(line[0], list(rest)).params)


def line_of(container: Object, folder: Path) -> list[str]:
    """A container's command line. What a shell makes of its script is asked of the shell."""
    line = [*container["command"], *container["args"]]
    if line[:2] != ["/bin/sh", "-c"]:
        return line
    stub = folder / "cogr-index"
    stub.write_text('#!/bin/sh\nprintf "%s\\n" cogr-index "$@"\n')
    stub.chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}"}
    ended = subprocess.run(line, capture_output=True, text=True, check=True, env=environment)
    return ended.stdout.splitlines()


def test_the_real_commands_and_settings_take_what_containers_are_given(
    objects: list[Object], tmp_path: Path
) -> None:
    known = {f"COGR_{key.replace('.', '__').upper()}" for key in known_keys()} | {"COGR_CACHE_DIR"}
    tried = 0
    for name, container in containers(objects):
        given = {variable["name"] for variable in container["env"]}
        assert {variable for variable in given if variable.startswith("COGR_")} <= known, name
        line = line_of(container, tmp_path)
        if line[0] in ("python", "vllm"):
            continue
        assert str(parse(line)["config"]) == "/etc/cogr/cogr.toml", name
        mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert "/etc/cogr/cogr.toml" in mounts, name
        tried += 1
    assert tried >= 3


def test_secrets_are_references_and_go_where_they_are_read(render: Render) -> None:
    objects = render(ALL)
    secret = {}
    for name, container in containers(objects):
        references = [v for v in container["env"] if "secretKeyRef" in v.get("valueFrom", {})]
        secret[name] = {variable["name"] for variable in references}
        assert all(v["valueFrom"]["secretKeyRef"]["name"] == "credentials" for v in references)
    assert secret["Deployment shop-cogr-worker: worker"] == {
        "COGR_REDIS__URL",
        "COGR_GENERATOR__OPENAI__API_KEY",
    }
    assert "COGR_SERVING__TOKEN" in secret["Deployment shop-cogr-expander: expander"]
    assert secret["Deployment shop-cogr-vllm: vllm"] == {"VLLM_API_KEY"}
    rounds = next(value for name, value in secret.items() if name.endswith(": round"))
    assert rounds == {"COGR_OPENSEARCH__PASSWORD"}
    assert [o for o in objects if o["kind"] == "Secret"] == []


def test_ports_and_probes_are_the_services_own(render: Render, tmp_path: Path) -> None:
    objects = render(ALL)
    settings = settings_of(objects, tmp_path).model_copy(update={"store": str(tmp_path)})

    async def routes() -> set[str]:
        parts = make_parts(Workspace(settings))
        found = {getattr(route, "path", "") for route in create_app(parts).routes}
        await parts.close()
        return found

    known = asyncio.run(routes())
    container = one(objects, "Deployment", "-expander")["spec"]["template"]["spec"]["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": 8600}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] in known
        assert container[probe]["httpGet"]["port"] in ports
    assert one(objects, "ServiceMonitor", "-expander")["spec"]["endpoints"][0]["path"] in known
    entry = one(objects, "Ingress", "-expander")["spec"]["rules"][0]["http"]["paths"][0]
    assert entry["path"] in known
    worker = one(objects, "Deployment", "-worker")["spec"]["template"]["spec"]["containers"][0]
    assert worker["ports"] == [{"name": "metrics", "containerPort": settings.metrics.port}]
    monitored = one(objects, "PodMonitor", "-rebuilds")["spec"]["podMetricsEndpoints"][0]
    assert monitored["port"] == worker["ports"][0]["name"]


@pytest.mark.parametrize(
    "generator",
    [
        {"name": "openai", "model": "shop"},
        {"name": "vllm", "item": {"model": "/a"}, "query": {"model": "/c"}},
        {"name": "statistical"},
    ],
)
def test_the_autoscaler_watches_the_queue_that_the_broker_has(
    render: Render, tmp_path: Path, generator: dict[str, Any]
) -> None:
    redis = {"url": "rediss://broker:6380/3?ssl_ca_certs=/etc/cogr/tls/ca.crt"}
    chosen = {"settings": {**URLS, "generator": generator, "redis": redis}}
    objects = render(merged(chosen, GPU, {"worker": {"keda": {"enabled": True}}}))
    settings = settings_of(objects, tmp_path)
    triggers = [
        trigger["metadata"]
        for trigger in one(objects, "ScaledObject", "-worker")["spec"]["triggers"]
    ]
    expected = [f"cogr:{queue_of(side, settings.generator.of(side))}" for side in ("item", "query")]  # type: ignore[arg-type]
    assert [trigger["listName"] for trigger in triggers] == expected
    assert {(t["address"], t["databaseIndex"], t["enableTLS"]) for t in triggers} == {
        ("broker:6380", "3", "true")
    }


def test_the_network_policy_lets_through_what_the_configuration_names(
    objects: list[Object], tmp_path: Path
) -> None:
    settings = settings_of(objects, tmp_path)
    policy = next(
        o for o in objects if o["kind"] == "NetworkPolicy" and "Egress" in o["spec"]["policyTypes"]
    )
    ports = {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]}
    urls = [settings.opensearch.url, settings.redis.url, settings.generator.openai.base_url]
    assert {urlsplit(url).port for url in urls if url} | {53} <= ports
    assert (
        policy["spec"]["podSelector"]["matchLabels"].items()
        <= pods(objects)[0][1]["metadata"]["labels"].items()
    )


CANARY = "canary"
INJECTED = [
    f"x\n{CANARY}: true",
    f"x}}, {CANARY}: {{a: b",
    f'x", {CANARY}: "x',
    f"x\n---\n{CANARY}: true",
    "x: y #",
]
# What the templates themselves read; the schema alone keeps it whole.
READ = {
    "settings.opensearch.url",
    "settings.redis.url",
    "settings.generator.openai.base_url",
    "settings.generator.name",
    "settings.store",
    "store.existingClaim",
    "worker.sides",
    "update.item.changedFile",
    "update.query.changedFile",
}


def injected(values: Any, text: str, path: str = "") -> Any:
    """The same values with a text in the place of each text."""
    if isinstance(values, dict):
        return {
            key: injected(inner, text, f"{path}.{key}".lstrip(".")) for key, inner in values.items()
        }
    if isinstance(values, list):
        return [injected(inner, text, path) for inner in values]
    if not isinstance(values, str) or path in READ:
        return values
    # A store that is not a folder has no volume.
    return f"/{text}" if values.startswith("/") else text


def keys_of(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value) | {key for inner in value.values() for key in keys_of(inner)}
    return {key for inner in value for key in keys_of(inner)} if isinstance(value, list) else set()


@pytest.mark.parametrize("text", INJECTED)
def test_no_text_of_the_values_becomes_yaml(helm: Helm, text: str) -> None:
    """With the schema off: quoting alone keeps a value what it is."""
    defaults = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    whole = merged(defaults, ALL)
    given = json.dumps(injected(whole, text))
    arguments = ("--skip-schema-validation", "--kube-version", "1.33.0", "--values", "-")
    ended = helm("template", "shop", str(CHART), "--namespace", "search", *arguments, input=given)
    assert ended.returncode == 0, ended.stderr[-2000:]
    objects = [object_ for object_ in yaml.safe_load_all(ended.stdout) if object_]
    assert len(objects) > 20
    assert CANARY not in keys_of(objects)
    for name, pod in pods(objects):
        assert pod["spec"]["priorityClassName"] == text, name
        assert pod["spec"]["volumes"][1]["emptyDir"] == {"sizeLimit": text}


@pytest.mark.parametrize(
    ("setting", "password"),
    [
        ("settings.opensearch.url", "plain"),
        ("settings.redis.url", "a/b"),
        ("settings.generator.openai.base_url", "a#b"),
        ("settings.store", "a@b?c"),
        ("monitoring.pushgateway", "%40"),
    ],
)
def test_a_url_with_a_password_is_refused_and_not_repeated(
    template: Helm, setting: str, password: str
) -> None:
    inner: Any = f"https://user:{password}@host:1/x"
    for name in reversed(setting.split(".")):
        inner = {name: inner}
    ended = template(merged({"settings": URLS}, inner))
    assert ended.returncode != 0
    assert f"{setting} has a user or a password in its URL" in ended.stderr
    assert password not in ended.stderr


def test_another_round_image_or_setting_is_another_job(render: Render) -> None:
    def name_of(**more: Any) -> str:
        return str(one(render(merged(ALL, more)), "Job", "", "-round-")["metadata"]["name"])

    first = name_of()
    assert first.startswith("shop-cogr-round-1-")
    others = [
        name_of(training={"round": 2}),
        name_of(jobs={"image": {"tag": "next"}}),
        name_of(settings={"training": {"seed": 1}}),
    ]
    assert len({first, *others}) == 4
    assert name_of(expander={"replicas": 5}) == first


def test_the_rules_of_the_chart_itself_hold(helm_unittest: Helm) -> None:
    """What is refused, who scales, which commands run: charts/cogr/tests."""
    ended = helm_unittest("--strict", str(CHART))
    assert ended.returncode == 0, ended.stdout[-4000:]

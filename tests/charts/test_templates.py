"""What the chart renders: pods that the real commands and settings accept, and refusals of what
can't work.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
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
from tests.charts.conftest import (
    CHART,
    URLS,
    Helm,
    Object,
    Render,
    configuration,
    containers,
    merged,
    one,
    pods,
)
from tests.commands import ran
from tests.documents import DOCS

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
SCHEMA = json.loads((CHART / "values.schema.json").read_text("utf-8"))
CASES = [*FILES, "ALL"]
pytestmark = pytest.mark.slow


@pytest.fixture(params=CASES)
def objects(request: pytest.FixtureRequest, render: Render) -> list[Object]:
    """Each values file, and everything switched on."""
    return render(ALL) if request.param == "ALL" else render(file=request.param)


def settings_of(objects: list[Object], folder: Path) -> Settings:
    """The rendered cogr.toml, loaded as the commands load it."""
    (folder / "cogr.toml").write_text(configuration(objects))
    return load_settings(folder / "cogr.toml")


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
    return ran(*line, env=environment).splitlines()


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
        assert container[probe]["httpGet"]["path"].partition("?")[0] in known
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
    f"x}}, {CANARY}: {{a: b",
    f'x", {CANARY}: "x',
    f"x: y #\n---\n{CANARY}: true",
]
# What the templates themselves read; the schema alone keeps it whole.
READ = {
    "settings.opensearch.url",
    "settings.redis.url",
    "settings.generator.openai.base_url",
    "settings.generator.name",
    "settings.store",
    "certificates.configMapName",
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


EXAMPLES = [
    pytest.param(values, id=f"{page.name}-{number}")
    for page in sorted(DOCS.glob("*.md"))
    for number, block in enumerate(re.findall(r"```ya?ml\n(.*?)```", page.read_text("utf-8"), re.S))
    if (values := yaml.safe_load(block)).keys() <= SCHEMA["properties"].keys()
]


@pytest.mark.parametrize("values", EXAMPLES)
def test_every_example_of_the_pages_renders(values: dict[str, Any], template: Helm) -> None:
    broker = {"settings": {"redis": URLS["redis"]}}
    ended = template(merged(broker, values))
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("release", "values"),
    [
        ("a" * 53, {}),
        ("b" * 37 + "-cogr", {}),
        ("shop", {"fullnameOverride": "c" * 63}),
        ("shop", {"nameOverride": "d" * 60}),
    ],
)
def test_names_are_as_short_as_the_api_server_wants_them(
    release: str, values: dict[str, Any], render: Render
) -> None:
    fill = {"settings": {"serving": {"into": {"index": "products"}}}, "fill": {"enabled": True}}
    objects = render(merged(ALL, fill, values), release=release)
    names = [(o["kind"], o["metadata"]["name"]) for o in objects]
    assert len({one for one in names if one[0] == "CronJob"}) == 5
    for kind, name in names:
        assert len(name) <= (52 if kind == "CronJob" else 63)
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name)


@pytest.mark.parametrize(
    ("given", "user", "group"),
    [
        ({}, 10001, 10001),
        ({"podSecurityContext": None}, None, None),
        ({"podSecurityContext": {"runAsUser": 7, "fsGroup": None}}, 7, None),
    ],
)
def test_user_and_groups_are_the_values(
    given: dict[str, Any], user: int | None, group: int | None, render: Render
) -> None:
    for _, pod in pods(render(merged(ALL, given))):
        context = pod["spec"]["securityContext"]
        assert (context.get("runAsUser"), context.get("fsGroup")) == (user, group)
        assert context["runAsNonRoot"] is True
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}


def test_what_all_pods_and_objects_get_more(render: Render) -> None:
    more = {
        "certificates": {"secretName": "", "configMapName": "ca"},
        "commonLabels": {"team": "search", "app.kubernetes.io/instance": "mine"},
        "commonAnnotations": {"cost": "42", "helm.sh/hook": "none"},
        "podLabels": {"team": "pods"},
        "extraVolumes": [{"name": "licences", "configMap": {"name": "licences"}}],
        "extraVolumeMounts": [{"name": "licences", "mountPath": "/licences", "readOnly": True}],
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://a"}, {"name": "B", "value": "1"}],
        "worker": {"extraEnv": [{"name": "HTTPS_PROXY", "value": "http://b"}]},
        "vllm": {"podAnnotations": {"cost": "9"}},
    }
    objects = render(merged(ALL, more))
    for object_ in objects:
        labels, annotations = (object_["metadata"][name] for name in ("labels", "annotations"))
        assert (labels["team"], annotations["cost"]) == ("search", "42")
        assert labels["app.kubernetes.io/instance"] == "shop"
        if object_["kind"] in ("Job", "Pod") and annotations["helm.sh/hook"] != "none":
            assert annotations["helm.sh/hook"] in ("test", "pre-install,pre-upgrade")
    for owner, pod in pods(objects):
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        assert volumes["tls"]["configMap"] == {"name": "ca"}
        assert volumes["licences"]["configMap"] == {"name": "licences"}
        if not owner.startswith("Pod "):
            assert pod["metadata"]["labels"]["team"] == "pods"
            own = "9" if owner.endswith("-vllm") else "42"
            assert pod["metadata"]["annotations"]["cost"] == own
    for owner, container in containers(objects):
        places = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
        assert (places["tls"], places["licences"]) == ("/etc/cogr/tls", "/licences")
        variables = [(one["name"], one.get("value")) for one in container["env"]]
        proxy = "http://b" if owner.endswith("-worker: worker") else "http://a"
        assert [value for name, value in variables if name == "HTTPS_PROXY"] == [proxy]
        assert ("B", "1") in variables


HUB, FOLDER = "Qwen/Qwen3-1.7B", "/var/lib/cogr/models/base"


@pytest.mark.parametrize(
    ("values", "fetches"),
    [
        ({"settings": {"generator": {"query": {"name": "transformers", "model": HUB}}}}, True),
        ({"settings": {"generator": {"name": "transformers", "model": FOLDER}}}, False),
        ({"settings": {"generator": {"name": "openai", "model": HUB}}}, False),
        ({"settings": {"generator": {"statistical": {"encoder": HUB}}}}, True),
        ({"settings": {"generator": {"statistical": {"judge": "vllm"}, "model": HUB}}}, True),
        ({"settings": {"training": {"model": HUB}}, "training": {"enabled": True}}, True),
        ({"settings": {"training": {"model": HUB}}}, False),
        ({"vllm": {"enabled": True, "model": HUB}}, True),
    ],
)
def test_the_port_of_the_hub_is_open_where_models_come_from_it(
    values: dict[str, Any], fetches: bool, render: Render
) -> None:
    peers = {"networkPolicy": {"servicesTo": [{"podSelector": {}}]}}
    policy = one(render(merged({"settings": URLS}, peers, values)), "NetworkPolicy", "shop-cogr")
    rules = [
        rule
        for rule in policy["spec"]["egress"]
        if {"port": 443, "protocol": "TCP"} in rule["ports"]
    ]
    # The hub is no peer of the cluster.
    assert rules == ([{"ports": [{"port": 443, "protocol": "TCP"}]}] if fetches else [])


def test_a_job_fills_the_field_of_an_index_of_ones_own(render: Render) -> None:
    into = {"settings": merged(URLS, {"serving": {"into": {"index": "products"}}})}
    values = merged(into, {"fill": {"enabled": True, "schedule": "*/5 * * * *"}})
    job = one(render(values), "CronJob", "shop-cogr-fill")
    (container,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert container["command"] + container["args"][:1] == ["cogr-index", "publish"]
    assert job["spec"]["schedule"] == "*/5 * * * *"
    assert "fill" not in {o["metadata"]["name"].rpartition("-")[2] for o in render(into)}


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

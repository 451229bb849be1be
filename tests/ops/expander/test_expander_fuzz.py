"""The expander under made-up requests: none is a server error, no secret and no query comes out
where it must not.
"""

from __future__ import annotations

import logging
from pathlib import Path

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error

from cogr.settings.serving import LogSettings
from indexers.telemetry.logs import PACKAGES, configure
from tests.ops.broken_servers import broken
from tests.ops.expander.expander_worlds import running, serve_pair, wait_for, workspace

pytestmark = pytest.mark.slow


def test_no_request_of_the_openapi_is_a_server_error(tmp_path: Path) -> None:
    opened = workspace(tmp_path, "serving.deadline=20")
    serve_pair(opened)
    with running(opened) as shop:
        schema = schemathesis.openapi.from_dict(shop.client.get("/openapi.json").json())
        for operation in (found.ok() for found in schema.get_all_operations()):

            @given(case=operation.as_strategy())
            @settings(
                max_examples=8,
                deadline=None,
                database=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            )
            def check(case: schemathesis.Case) -> None:
                case.call_and_validate(base_url=shop.url, checks=[not_a_server_error], timeout=30)

            check()
        assert shop.metric("cogr_expander_bugs_total") == 0


CANARY = "zebra-canary-5417"


def test_secrets_and_queries_stay_inside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Everything fails while the most is logged; no secret and no query is in log, answers of
    refusals, or metrics.
    """
    # A command of another test may have left JSON logs, which go no further.
    configure(LogSettings())
    for name in ("", *PACKAGES):
        caplog.set_level(logging.DEBUG, name or None)
    secret = "very-secret-4711"
    with broken("noise") as redis, broken("wrong json") as model:
        overrides = (
            f"serving.token={secret}",
            f"generator.openai.api_key={secret}",
            f"redis.url=redis://:{secret}@127.0.0.1:{redis}/0",
            "serving.deadline=1",
            "serving.live=openai",
            f"generator.openai.base_url=http://127.0.0.1:{model}/v1",
        )
        opened = workspace(tmp_path, *overrides)
        serve_pair(opened)
        with running(opened, model="m") as expander:
            wait_for(lambda: expander.parts.models.state == "openai")
            expander.client.headers["authorization"] = f"Bearer {secret}"
            for number in range(8):
                assert expander.expand(f"{CANARY} {number}")["source"] == "none"
            said = [expander.client.post("/expand", content=f'{{"{CANARY}": "{CANARY}').text]
            for header in ({}, {"authorization": "Bearer wrong"}, {"authorization": secret}):
                asked = httpx.post(expander.url + "/expand", json={"query": CANARY}, headers=header)
                assert (asked.status_code, asked.headers["www-authenticate"]) == (401, "Bearer")
                said.append(asked.text)
            assert httpx.get(f"{expander.url}/healthz").status_code == 200
            said += [expander.client.get(path).text for path in ("/metrics", "/readyz", "/healthz")]
    packages = ("cogr", "indexers", "ops", "_granian")
    ours = [record for record in caplog.records if record.name.split(".")[0] in packages]
    assert ours
    for text in (*said, *map(logging.Formatter().format, ours)):
        assert not [one for one in (secret, CANARY, "zebra") if one in text]

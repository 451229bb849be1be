"""Real servers for tests, started lazily, once for all processes of a run, by the code of `cogr-ops
opensearch start` and `redis start`.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
from filelock import FileLock

from cogr import redaction
from cogr.errors import CogrError
from cogr.settings.indexing import RedisSettings
from cogr.settings.serving import OpenSearchSettings
from cogr.store import Store
from indexers.backends.opensearch.client import Cluster
from ops.servers import OpenSearchSpec, ServerSpec, ServerState, ValkeySpec, known, stop
from tests.commands import UNDER_CI, Command, run_program
from tests.indexers.backends.opensearch_worlds import prefix_of
from tests.owned_servers import BRIEF, owner_of, start_owned
from tests.secure_node import SecureSpec, secured

# No test fetches weights, or finds some that a person has fetched.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_CACHE"] = os.devnull
# The environment of `make test-fast` has no PyTorch; these import it, or what comes with it.
if find_spec("torch") is None:
    collect_ignore = [
        "ops/expander/test_expander_fuzz.py",
        "benchmarks/compare/test_trained_methods.py",
    ]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs OpenSearch is marked, by a fixture or a parameter. Files with the most long tests
    come first, so that no process is left with one at the end.
    """
    nodes = {"opensearch", "opensearch_2", "opensearch_secure"}
    for item in items:
        values = item.callspec.params.values() if hasattr(item, "callspec") else ()
        named = {value for value in values if isinstance(value, str)}
        if nodes & {*getattr(item, "fixturenames", ()), *named}:
            item.add_marker("server")
    long = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -long[item.path])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Reports go from process to process as UTF-8; tests of hostile texts log what can't be written
    in it.
    """
    report = yield
    report.sections = [
        (name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections
    ]
    return report


@pytest.fixture(autouse=True, scope="session")
def _environment() -> None:
    """Tables are as wide as for a pipe, whatever terminal pytest-xdist has. Torch compiles nothing:
    vLLM's small kernels take a C++ compiler longer than they save. The environment's programs are
    on the PATH, as a user has them: next-step lines name them without a folder.
    """
    os.environ.pop("COLUMNS", None)
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"


@pytest.fixture(autouse=True)
def _nothing_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process remembers the secrets of its settings to mask them; a test's are not the next
    one's.
    """
    monkeypatch.setattr(redaction, "learned", set())


@pytest.fixture
def no_other_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting comes from the environment of the tests."""
    for name in [name for name in os.environ if name.startswith("COGR_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def run_any(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Run one of our programs in this process: its name, then its arguments."""
    return partial(run_program, monkeypatch, capfd)


@pytest.fixture
def cogr_index(run_any: Command) -> Command:
    """Run `cogr-index` with arguments."""
    return partial(run_any, "cogr-index")


@pytest.fixture
def cogr_train(run_any: Command) -> Command:
    """Run `cogr-train` with arguments."""
    return partial(run_any, "cogr-train")


@pytest.fixture
def cogr_ops(run_any: Command) -> Command:
    """Run `cogr-ops` with arguments."""
    return partial(run_any, "cogr-ops")


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store, in a folder and in memory."""
    return Store(tmp_path if request.param == "local" else f"memory://{tmp_path.name}")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with four items, three queries and a configuration; also the working directory."""
    from tests.shops import EXTRACTIVE, ITEMS, LABELS, QUERIES, write_shop

    write_shop(tmp_path, ITEMS, QUERIES, LABELS, EXTRACTIVE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_name() -> str:
    """The name of this run of tests, the same in all of its processes."""
    return f"tests-{os.environ.get('PYTEST_XDIST_TESTRUNUID', str(os.getpid()))[:12]}"


def run_process() -> int:
    """The process that this run of tests ends with: pytest-xdist's first one, if it is used."""
    return os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()


def made_for_the_run(
    factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]
) -> Path:
    """A folder, filled by the first process of this run that needs it, for all to read."""
    base = factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    done = root / f"{name}.made"
    with FileLock(root / f"{name}.lock"):
        if not done.exists():
            (root / name).mkdir()
            make(root / name)
            done.touch()
    return root / name


@pytest.fixture(scope="session")
def fitted_shop(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Where `statistical`, fitted on the sample shop, lies; once for the run, not to be changed."""
    from indexers.generators.statistical.generator import Statistical
    from tests.shops import sample_shop

    def fit(folder: Path) -> None:
        _ = Statistical(sample_shop(), store=Store(folder)).artefact

    return Store(made_for_the_run(tmp_path_factory, "fitted-shop", fit))


def shared(wanted: ServerSpec) -> ServerState:
    """A server that all processes of this run of tests use; the first one that needs it starts it.
    Every file of tests uses prefixes of its own in it.
    """
    try:
        return start_owned(wanted, run_process())
    except CogrError as error:
        if UNDER_CI:
            pytest.fail(f"No {wanted.server_name} for the tests: {error}")
        pytest.skip(f"NO {wanted.kind.upper()}: {error}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """The first process of a run stops what the run shared."""
    if not hasattr(session.config, "workerinput"):
        for kind in (OpenSearchSpec.kind, ValkeySpec.kind):
            for state in known(kind):
                if (owner := owner_of(state)) is not None and owner[0] == os.getpid():
                    stop(state.kind, state.name, remove=True)


def _node(version: str) -> OpenSearchSettings:
    name = f"{run_name()}-{version}"
    wanted = OpenSearchSpec(version=version, name=name, port=0, options=BRIEF)
    return OpenSearchSettings(url=shared(wanted).url)


@pytest.fixture(scope="session")
def opensearch() -> OpenSearchSettings:
    """OpenSearch 3.8.0, one node, no authentication."""
    return _node("3.8.0")


@pytest.fixture
def cluster(opensearch: OpenSearchSettings) -> Iterator[Cluster]:
    """That node, under a prefix of this test's own."""
    with prefix_of(opensearch) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def opensearch_2() -> OpenSearchSettings:
    """OpenSearch 2.19.5, one node, no authentication."""
    # Maven's parts of version 2 have no other analyser.
    return _node("2.19.5").model_copy(update={"text_analyzer": "standard"})


@pytest.fixture(scope="session")
def opensearch_secure() -> OpenSearchSettings:
    """OpenSearch 3.4.0 with the security plugin: TLS, basic authentication; the settings hold user,
    password and CA file.
    """
    wanted = SecureSpec(name=f"{run_name()}-secure", port=0, options=BRIEF)
    return secured(shared(wanted))


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of an object store of this session's own: moto's server, in a thread."""
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a new bucket.

    The environment says how to reach it, for this process and for those that it starts.
    """
    import s3fs

    own = {"AWS_ENDPOINT_URL": s3_server, "AWS_DEFAULT_REGION": "us-east-1"}
    for name, value in (
        own | {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests"}
    ).items():
        monkeypatch.setenv(name, value)
    bucket = f"bucket-{uuid.uuid4().hex[:12]}"
    s3fs.S3FileSystem(use_listings_cache=False).mkdir(bucket)
    return f"s3://{bucket}"


@pytest.fixture(scope="session")
def own_valkey() -> RedisSettings:
    """One for tests that change the whole server."""
    return RedisSettings(url=str(shared(ValkeySpec(name=f"{run_name()}-own", port=0)).url))


@pytest.fixture(scope="session")
def valkey() -> RedisSettings:
    """The run's Valkey, no password; each process of tests has a database of its own."""
    wanted = ValkeySpec(name=f"{run_name()}-valkey", port=0)
    number = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    url = str(shared(wanted).url).rpartition("/")[0]
    return RedisSettings(url=f"{url}/{int(number) % 16}")

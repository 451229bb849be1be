"""Settings: one TOML file, then COGR_ environment variables, then flags. Unknown keys are errors
that name the nearest key.

Nested keys are spelled `[opensearch] url = ...` in the file, `COGR_OPENSEARCH__URL` in the
environment and `--set opensearch.url=...` on the command line. Paths in the file are relative to
the file. Each file of this package holds the tables of one subject.
"""

from cogr.settings.indexing import DatasetSettings, GeneratorName, GeneratorSettings, Sampling
from cogr.settings.loading import (
    DEFAULT_FILE,
    URL_VARIABLE,
    Settings,
    known_keys,
    load_settings,
    secret_keys,
    table_of_environment,
)
from cogr.settings.serving import OpenSearchSettings, PublishSettings

__all__ = [
    "DEFAULT_FILE",
    "URL_VARIABLE",
    "DatasetSettings",
    "GeneratorName",
    "GeneratorSettings",
    "OpenSearchSettings",
    "PublishSettings",
    "Sampling",
    "Settings",
    "known_keys",
    "load_settings",
    "secret_keys",
    "table_of_environment",
]

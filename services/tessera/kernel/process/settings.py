"""
Settings: one frozen model per service, read once in its `main` and passed down.

In order of precedence: arguments, environment (`TESSERA_NATS_URL`, nested by `__`), the TOML file that
TESSERA_CONFIG_FILE names or `./tessera.toml`, the credential file, the defaults. One TOML file serves all services:
its top level holds what they share, and the table named after a service holds what only that one has. A key that is no
setting and a table that is no service's are refused; an unknown variable is told (`unknown_settings`), since the
environment is others', too.
"""

import json
import os
import tomllib
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from tessera.kernel.errors import StartupError
from tessera.kernel.process.unknown_settings import nearest
from tessera_schemas.shard.services import SERVICES
from tessera_schemas.subjects import NAME

PREFIX = "TESSERA_"
CONFIG_FILE_VARIABLE = "TESSERA_CONFIG_FILE"


class ServiceSettings(BaseSettings):
    """Settings of every service. Passwords come from the credential file, or one by one from the environment."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix=PREFIX, env_nested_delimiter="__", hide_input_in_errors=True
    )
    service: ClassVar[str] = ""

    shard: str = Field("main", pattern=f"^{NAME.pattern}$", description="Shard that the process serves")
    credentials_file: Path | None = Field(
        None, description="JSON file of an identity, as `tessera init` writes it; {service} stands for the service"
    )

    nats_url: str = Field(
        "nats://127.0.0.1:4222",
        pattern="^(nats|tls)://",
        description="Address of NATS; tls:// for an encrypted connection",
    )
    nats_user: str = Field("", description="Identity at NATS")
    nats_password: SecretStr = Field(SecretStr(""), description="Password at NATS")
    nats_monitor_url: str = Field(
        "http://127.0.0.1:8222",
        pattern="^https?://",
        description="Address of NATS' monitoring, which shows whether the server syncs each write",
    )
    allow_unsynced: bool = Field(
        False, description="Accept a NATS that does not sync each write: acknowledged work may be lost in a power cut"
    )
    allow_anybody: bool = Field(
        False, description="Accept a NATS without identities: every client may write any tenant's records"
    )

    redis_url: str = Field(
        "redis://127.0.0.1:6379/0",
        pattern="^(redis|rediss|unix)://",
        description="Address of Redis; rediss:// for an encrypted connection",
    )
    redis_user: str = Field("", description="Identity at Redis")
    redis_password: SecretStr = Field(SecretStr(""), description="Password at Redis")

    cluster_url: str = Field(
        "", description="Address of the Kubernetes API; empty: the usual kubeconfig or pod identity"
    )
    cluster_token: SecretStr = Field(
        SecretStr(""), description="Token for the Kubernetes API, in place of the kubeconfig's"
    )

    steps_image: str = Field(
        "",
        max_length=512,
        description="Image of the step runner, which admission and binder need for launchers by steps; empty: such "
        "jobs are refused",
    )

    http_host: str = Field("127.0.0.1", description="Address of health checks and metrics; loopback by default")
    http_port: int = Field(0, ge=0, le=65_535, description="Port of health checks and metrics; 0 takes a free one")
    port_file: Path | None = Field(
        None,
        description="File to write the health port to, for a parent that passes port 0; {service} stands for the "
        "service",
    )
    otlp_url: str = Field(
        "", pattern="^(https?://.+)?$", description="OpenTelemetry collector for traces; needs the extra otel"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level that is logged")

    lease_seconds: float = Field(
        2.0,
        ge=0.2,
        le=60,
        description="Time after which a standby takes over; the lease is renewed four times as often",
    )
    connect_seconds: float = Field(5.0, gt=0, le=60, description="Time that start-up waits for NATS and for Redis")
    nice: int = Field(0, ge=0, le=19, description="CPU niceness: how far the process gives way to others")
    drain_seconds: float = Field(
        10.0, gt=0, le=300, description="Time to finish work in flight after a request to stop"
    )

    @model_validator(mode="before")
    @classmethod
    def _logins_from_file(cls, values: dict[str, Any]) -> dict[str, Any]:
        path = values.get("credentials_file")
        return {**_logins(_named(path, cls.service)), **values} if path else values

    def own_file(self, setting: str) -> Path | None:
        """Path that a setting names for this service; None where it names none."""
        path = getattr(self, setting)
        return _named(path, self.service) if path else None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Sources by rank: arguments, environment, TOML file; no .env file and no folder of secrets."""
        return init_settings, env_settings, InitSettingsSource(settings_cls, init_kwargs=_toml_values(cls.service))


def _named(path: Path | str, service: str) -> Path:
    return Path(str(path).replace("{service}", service))


S = TypeVar("S", bound=ServiceSettings)


def load_settings(model: type[S], **overrides: Any) -> S:
    """
    Read a service's settings.

    Raises StartupError naming the first wrong field, what is wrong with it, and where to set it.
    """
    try:
        return model(**overrides)
    except ValidationError as error:
        first, *rest = error.errors(include_url=False, include_input=False, include_context=False)
        field = "__".join(str(part) for part in first["loc"]) or "settings"
        more = f" (and {len(rest)} more)" if rest else ""
        if first["type"] == "extra_forbidden":
            meant = nearest(field, model.model_fields)
            raise StartupError(
                f"setting {field}: there is none{meant}; correct it in {_config_path()}{more}"
            ) from error
        raise StartupError(
            f"setting {field}: {first['msg']}; set {PREFIX}{field.upper()} or {field.replace('__', '.')} "
            f"in {_config_path()}{more}"
        ) from error


def _config_path() -> Path:
    return Path(os.environ.get(CONFIG_FILE_VARIABLE, "tessera.toml"))


def _toml_values(service: str) -> dict[str, Any]:
    """The shared values and the service's own table; the other services' tables are none of its business."""
    path = _config_path()
    if not path.exists() and CONFIG_FILE_VARIABLE not in os.environ:
        return {}
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise StartupError(f"{path}: cannot be read ({error.strerror}); see {CONFIG_FILE_VARIABLE}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StartupError(f"{path}: is not TOML ({error}); mend that line") from error
    shared = {name: value for name, value in values.items() if not isinstance(value, dict)}
    for name in values.keys() - shared.keys() - set(SERVICES):
        raise StartupError(f"{path}: table [{name}]: no service is called so{nearest(name, SERVICES)}; correct it")
    own = values.get(service, {})
    if not isinstance(own, dict):
        raise StartupError(f"{path}: {service} is not a table; write [{service}] and the service's settings below it")
    return {**shared, **own}


def _logins(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8-sig"))
        redis = raw["redis"] or {"user": "", "password": ""}
        return {
            "nats_user": raw["nats"]["user"],
            "nats_password": raw["nats"]["password"],
            "redis_user": redis["user"],
            "redis_password": redis["password"],
            "cluster_token": raw["cluster_token"],
        }
    except OSError as error:
        raise StartupError(
            f"setting credentials_file: cannot read {path} ({error.strerror}); see tessera init"
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StartupError(f"setting credentials_file: {path} is not a credential file; run tessera init") from error

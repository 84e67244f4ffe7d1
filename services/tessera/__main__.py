"""`python -m tessera`: the same as `tessera`; `run` goes the short way, since a service needs nothing of the client."""

import sys


def main() -> int:
    match sys.argv[1:]:
        case ["run", service] if not service.startswith("-"):
            return _run(service)
        case ["run", service, "--shard", shard]:
            return _run(service, shard)
    from tessera.client.cli import main as command_line

    command_line()
    return 0


def _run(service: str, shard: str | None = None) -> int:
    from tessera.launch import run_named  # a command needs nothing of a service

    return run_named(service, shard)


if __name__ == "__main__":
    sys.exit(main())

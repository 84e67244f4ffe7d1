"""`python -m tessera`: the same as `tessera`; `run` goes the short way, since a service needs nothing of the client."""

import sys

from tessera.launch import run_named


def main() -> int:
    match sys.argv[1:]:
        case ["run", service] if not service.startswith("-"):
            return run_named(service, "main")
        case ["run", service, "--shard", shard]:
            return run_named(service, shard)
    from tessera.client.cli import main as command_line

    command_line()
    return 0


if __name__ == "__main__":
    sys.exit(main())

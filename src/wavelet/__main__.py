"""The command `wavelet`, also `python -m wavelet`."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ModuleNotFoundError as error:
        print(f"wavelet: the command line needs {error.name}: pip install 'wavelet-train[cli]'", file=sys.stderr)
        sys.exit(2)
    from wavelet.cli.app import run

    sys.exit(run())


if __name__ == "__main__":
    main()

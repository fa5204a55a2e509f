"""``python3 -m sealstone_function FUNCTION.py [--arg NAME=VALUE]... FILE...``: runs it locally."""

import argparse
import sys

from sealstone_function.local import run_function


def main(arguments=None):
    """Runs a function over local files, one call for all; returns the exit code."""
    parser = argparse.ArgumentParser(prog="sealstone_function", description="Runs a function locally.")
    parser.add_argument("function", help="source file with def run(osd, call)")
    parser.add_argument("files", nargs="*", help="files whose contents are the objects of the call")
    parser.add_argument("--arg", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--method", default="")
    parser.add_argument("--update", action="store_true", help="write changed objects back to their files")
    options = parser.parse_intermixed_args(arguments)
    pairs = {}
    for pair in options.arg:
        name, equals, value = pair.partition("=")
        if not name or not equals or name in pairs:
            parser.error("--arg needs a new NAME=VALUE")
        pairs[name] = value
    contents = []
    for path in options.files:
        with open(path, "rb") as file:
            contents.append(file.read())
    outcome = run_function(options.function, contents, pairs, options.method)
    for level, line in outcome.log:
        print({1: "error: ", 2: "warning: "}.get(level, "") + line, file=sys.stderr)
    sys.stdout.buffer.write(outcome.result)
    sys.stdout.flush()
    if outcome.status == 0 and options.update:
        for path, before, after in zip(options.files, contents, outcome.objects):
            if after is not None and after != before:
                with open(path, "wb") as file:
                    file.write(after)
    if outcome.status:
        print("status %d" % outcome.status, file=sys.stderr)
    return 0 if outcome.status == 0 else 1


if __name__ == "__main__":
    sys.exit(main())

"""A mistake within `with group:` is shown, with the user's own line."""

import sys

import symmem


def main(group):
    with group:
        return {}["missing"]


if __name__ == "__main__":
    symmem.spawn(main, ranks=2, threads=sys.argv[1:] == ["threads"])

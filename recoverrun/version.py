"""The version of recoverrun."""

__version__ = "0.1.0"


def versions() -> dict[str, object]:
    """The versions of recoverrun and of what it stands on ("" where it is missing)."""
    import platform  # Not at the top: whoever asks for `__version__` needs neither.
    from importlib import metadata

    found: dict[str, object] = {"schema": 1, "recoverrun": __version__}
    found["python"] = platform.python_version()
    for name in ("torch", "pyzmq", "msgpack"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = ""
    return found

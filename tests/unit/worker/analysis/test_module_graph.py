"""The files that a script can import."""

from recoverrun.worker.analysis.module_graph import importable_from, imported_packages


def names(entry: str, **files: str) -> list[str]:
    sources = {f"/p/{name.replace('__', '/')}.py": text.encode() for name, text in files.items()}
    entry = f"/p/{entry}.py" if f"/p/{entry}.py" in sources else entry
    return sorted(path.removeprefix("/p/") for path in importable_from(sources, entry))


def test_what_is_never_imported_is_not_reached() -> None:
    found = names(
        "train",
        train="import model\nfrom pkg.data import (\n    text,\n    images,\n)\n",
        model="from . import layers as l, \\\n  heads\n",
        layers="", heads="", pkg__data="", pkg__text="", pkg__images="",
        other="import model", pkg__else="",
    )  # fmt: skip

    assert found == [
        "heads.py", "layers.py", "model.py", "pkg/data.py", "pkg/images.py", "pkg/text.py",
        "train.py",
    ]  # fmt: skip


def test_imports_within_functions_and_packages_are_reached() -> None:
    script = b"def f():\n  from pkg import x\n"
    found = importable_from({"t.py": script, "pkg/__init__.py": b"", "pkg/y.py": b""}, "t.py")

    assert sorted(found) == ["pkg/__init__.py", "t.py"]


def test_a_script_that_imports_by_name_reaches_all() -> None:
    text = "import importlib\nimportlib.import_module('o' + 'ther')\n"

    assert names("train", train=text, other="") == ["other.py", "train.py"]


def test_a_module_is_found_by_its_last_name() -> None:
    assert names("a.run", a__run="import b", b="", c="") == ["a/run.py", "b.py"]


def test_an_entry_that_is_not_among_the_files_reaches_all() -> None:
    assert names("elsewhere", a="", b="") == ["a.py", "b.py"]


def test_packages_that_are_imported_by_a_statement() -> None:
    text = b"import os, a.b as c\nif x:\n    from d.e import f\nfrom . import g\n# import h\n"

    assert imported_packages([text]) == {"os", "a", "d"}

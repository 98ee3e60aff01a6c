"""The registry's two errors, and the three ways to register a name."""

from __future__ import annotations

import importlib.metadata
import itertools
import sys
from dataclasses import dataclass, replace

import pytest
from helpers.subprocesses import in_a_process

import t2t_repro
from t2t_repro import registry
from t2t_repro.registry import HPARAMS, PROBLEMS, Registry, import_user_directory

NUMBER = itertools.count()


@dataclass(frozen=True)
class Thing:
    name: str


@pytest.fixture
def things(tmp_path, monkeypatch):
    """An empty registry, with a folder `things.folder` whose modules register in it, `things.source` heading each."""
    package = f"things{next(NUMBER)}"
    folder = tmp_path / package
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    monkeypatch.setattr(t2t_repro, "__path__", [*t2t_repro.__path__, str(tmp_path)])
    made = Registry("thing", package)
    monkeypatch.setattr(registry, "THINGS", made, raising=False)
    made.folder = folder
    made.source = "from t2t_repro.registry import THINGS\nfrom types import SimpleNamespace as Thing\n"
    return made


@pytest.fixture(autouse=True)
def no_user_directory_left():
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "t2t_usr_dir"]:
        del sys.modules[name]


def test_the_papers_two_models_and_the_built_in_problems_are_known():
    assert {"base", "big"} <= set(HPARAMS)
    assert "base" in HPARAMS and "bse" not in HPARAMS
    assert [HPARAMS[name].name for name in HPARAMS] == list(HPARAMS)
    assert [PROBLEMS[name].name for name in PROBLEMS] == list(PROBLEMS)


def test_functions_of_the_package_look_up():
    assert t2t_repro.get_hparams("base") is HPARAMS["base"]
    with pytest.raises(KeyError, match="unknown problem 'nothing'"):
        t2t_repro.get_problem("nothing")


def test_a_built_in_name_is_taken_before_the_first_look_up():
    source = (
        "import t2t_repro as t2t\nfor register, made in ((t2t.register_problem, t2t.Problem('translate_files', '')), "
    )
    source += "(t2t.register_hparams, t2t.HParams('base', ''))):\n    try:\n        register(made)\n"
    source += "    except ValueError as error:\n        print(error)\nprint('base' in t2t.list_hparams())"
    done = in_a_process("-c", source)
    first, second, last = done.stdout.splitlines()
    assert "is registered twice" in first and "is registered twice" in second and last == "True", done


def test_an_item_of_another_kind_is_refused():
    with pytest.raises(TypeError, match="^register_problem: expected a Problem. Received: HParams"):
        t2t_repro.register_problem(replace(HPARAMS["tiny"], name="translate_other"))
    with pytest.raises(TypeError, match="^register_hparams: expected HParams. Received: 'tiny'"):
        t2t_repro.register_hparams("tiny")
    for name in ("base@mine", "", "../x", "a\nb"):
        with pytest.raises(ValueError, match="^register_hparams: expected a name of letters, digits"):
            t2t_repro.register_hparams(replace(HPARAMS["tiny"], name=name))
    for look_up in (t2t_repro.get_hparams, t2t_repro.get_problem):
        with pytest.raises(TypeError, match="^expected the name of a .* Received: None$"):
            look_up(None)
    assert "translate_other" not in t2t_repro.list_problems()


def test_names_are_sorted_and_counted(things):
    for name in ("b", "c", "a"):
        things.register(Thing(name))
    assert list(things) == ["a", "b", "c"] and len(things) == 3


def test_unknown_name_gives_the_nearest_then_all(things):
    things.register(Thing("translate_ende"))
    things.register(Thing("parse"))
    with pytest.raises(KeyError) as caught:
        things["translate_end"]
    expected = "unknown thing 'translate_end': did you mean 'translate_ende'? known: parse, translate_ende"
    assert caught.value.args == (expected,)
    with pytest.raises(KeyError) as caught:
        things["zzz"]
    assert caught.value.args == ("unknown thing 'zzz'; known: parse, translate_ende",)


def test_duplicate_name_error_names_both_places(things):
    things.register(Thing("same"))
    with pytest.raises(ValueError, match=r"thing 'same' is registered twice: at .*:\d+ and at .*:\d+; rename one") as e:
        things.register(Thing("same"))
    assert str(e.value).count(__file__) == 2


def test_modules_of_the_folder_register_at_the_first_look_up(things):
    (things.folder / "one.py").write_text(f"{things.source}THINGS.register(Thing(name='one'))\n")
    (things.folder / "two.py").write_text(f"{things.source}THINGS.register(Thing(name='two'))\n")
    assert list(things) == ["one", "two"]


def test_import_error_in_a_module_is_raised_at_every_look_up(things):
    (things.folder / "bad.py").write_text("import no_such_module_anywhere\n")
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="no_such_module_anywhere"):
            things["one"]


def test_entry_points_register(things, tmp_path, monkeypatch):
    (tmp_path / "their_package.py").write_text(f"{things.source}THINGS.register(Thing(name='theirs'))\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    group = f"t2t_repro.{things.folder.name}"
    entry_point = importlib.metadata.EntryPoint(name="any", value="their_package", group=group)
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group: [entry_point] if group == entry_point.group else []
    )
    assert list(things) == ["theirs"]


def test_user_directory_of_loose_files(things, tmp_path):
    usr = tmp_path / "usr"
    usr.mkdir()
    (usr / "tree.py").write_text(f"{things.source}THINGS.register(Thing(name='mine'))\n")
    (usr / "more.py").write_text(f"from .tree import *\n{things.source}THINGS.register(Thing(name='more'))\n")
    (usr / "notes.txt").write_text("not code")
    path_before, tree_before = list(sys.path), sys.modules.get("tree")  # which tensorflow-datasets may have imported
    import_user_directory(str(usr))
    assert list(things) == ["mine", "more"]
    assert sys.path == path_before
    assert sys.modules.get("tree") is tree_before


def test_second_user_directory_may_have_files_of_the_same_name(things, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text(f"{things.source}THINGS.register(Thing(name='{name}'))\n")
        import_user_directory(str(tmp_path / name))
    import_user_directory(str(tmp_path / "two"))  # again: nothing to do
    assert list(things) == ["one", "two"]


def test_user_directory_without_names_that_cannot_be_imported(things, tmp_path):
    usr = tmp_path / "usr"
    usr.mkdir()
    (usr / "my-problem.py").write_text(f"{things.source}THINGS.register(Thing(name='mine'))\n")
    (usr / ".#my-problem.py").symlink_to("an editor's lock")
    import_user_directory(str(usr))
    assert list(things) == ["mine"]
    (usr / "my.copy.py").write_text("")
    with pytest.raises(ValueError, match=r"t2t_usr_dir: .*my\.copy\.py cannot be imported; rename it without a dot"):
        import_user_directory(str(usr))


def test_user_directory_that_is_a_package(things, tmp_path):
    usr = tmp_path / "usr"
    usr.mkdir()
    (usr / "__init__.py").write_text(f"from . import used\n{things.source}THINGS.register(Thing(name='mine'))\n")
    (usr / "used.py").write_text(f"{things.source}THINGS.register(Thing(name='used'))\n")
    (usr / "unused.py").write_text("1 / 0\n")
    path_before = list(sys.path)
    import_user_directory(str(usr))
    assert list(things) == ["mine", "used"]
    assert sys.path == path_before


def test_user_directory_cannot_redefine_a_name(things, tmp_path):
    (things.folder / "ours.py").write_text(f"{things.source}THINGS.register(Thing(name='same'))\n")
    usr = tmp_path / "usr"
    usr.mkdir()
    (usr / "mine.py").write_text(f"{things.source}THINGS.register(Thing(name='same'))\n")
    import_user_directory(str(usr))
    with pytest.raises(ValueError, match=r"'same' is registered twice: at .*usr/mine.py:3 and at .*ours.py:3"):
        len(things)


def test_error_in_a_user_directory_is_raised_with_its_file(tmp_path):
    (tmp_path / "mine.py").write_text("import no_such_module_anywhere\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_module_anywhere") as caught:
        import_user_directory(str(tmp_path))
    assert caught.value.__notes__ == [f"while importing {tmp_path}/mine.py"]


def test_user_directory_without_code_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="t2t_usr_dir: '.*none' is not a directory; give the folder with your"):
        import_user_directory(str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match="t2t_usr_dir: '.*' contains no .py file; put the module"):
        import_user_directory(str(tmp_path))

"""docs/coming-from-0.7.md and docs/parity.md against lists of names, and against what is here."""

import re
from pathlib import Path

import pytest
import rannc_07_names as names
import torch

import pyrannc
from pyrannc import Config, ConfigError, RaNNCError, RaNNCModule
from pyrannc.config import ITEMS
from pyrannc.original import loggers, methods, settings
from pyrannc.original import names as answers

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/coming-from-0.7.md").read_text()
PARITY = (ROOT / "docs/parity.md").read_text()
STATES = {"works", "differs", "later", "gone"}
TESTS = {
    path: path.read_text()
    for path in sorted((ROOT / "tests").rglob("*.py"))
    if path.name != "rannc_07_names.py" and path != Path(__file__)
}


def table(heading):
    """``{name: (state, words)}`` of the table whose head begins with ``heading``."""
    text = PAGE.split(f"| {heading} | | |\n|---|---|---|\n")[1].split("\n\n")[0]
    rows = [
        row.strip().removeprefix("| ").removesuffix("|").split(" | ") for row in text.split("\n")
    ]
    found = {row[0].strip("`"): (row[1], " | ".join(row[2:]).strip(" |")) for row in rows}
    assert len(found) == len(rows), "a name has two rows"
    return found


TABLES = {
    "of `pyrannc`": names.FUNCTIONS,
    "of its submodules": names.SUBMODULES,
    "argument": names.ARGUMENTS,
    "method": names.METHODS,
    "argument of a method": names.METHOD_ARGUMENTS,
    "setting": names.SETTINGS,
    "variable of the environment": names.VARIABLES,
    "file": names.FILES,
    "logger": names.LOGGERS,
    "what its documentation and examples show": names.RECIPES,
}


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RANNC_CONF_DIR", raising=False)


@pytest.mark.parametrize("heading", TABLES)
def test_every_name_has_one_row_and_every_row_a_name(heading):
    rows = table(heading)
    assert list(rows) == TABLES[heading]
    for name, (state, words) in rows.items():
        assert state in STATES, name
        assert words or state == "works", f"{name}: {state}, and not a word on it"


def test_the_numbers_of_names_are_those_of_the_original():
    counts = [names.FUNCTIONS, names.ARGUMENTS, names.METHODS, names.SETTINGS, names.LOGGERS]
    assert [len(set(each)) for each in counts] == [19, 9, 32, 65, 21]


def rows(heading):
    return [(name, *row) for name, row in table(heading).items()]


def refused(call):
    """The one line of the error of ``call``."""
    with pytest.raises(RaNNCError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


def wrapped():
    model = torch.nn.Linear(2, 2)
    return RaNNCModule(model, torch.optim.SGD(model.parameters(), lr=0.1))


def has_test(name):
    """Whether some test uses a name, other than this one."""
    word = re.compile(rf"\b{re.escape(name)}\b")
    return any(word.search(text) for text in TESTS.values())


@pytest.mark.parametrize(("name", "state", "words"), rows("of `pyrannc`"))
def test_functions(name, state, words):
    found = getattr(pyrannc, name)
    if state in ("works", "differs"):
        assert name in pyrannc.__all__ and has_test(name)
    else:
        line = refused(found)
        assert name in line
        assert words.startswith("as `") or plain(words.split(";")[0]) in plain(line), line


@pytest.mark.parametrize(("name", "state", "words"), rows("of its submodules"))
def test_functions_of_submodules(name, state, words):
    module, function = name.split(".")
    found = getattr(getattr(pyrannc, module), function)
    if state == "works":
        assert has_test(function)
    else:
        assert f"pyrannc.{name}()" in refused(found)


def plain(text):
    return text.replace("`", "")


@pytest.mark.parametrize(("name", "state", "words"), rows("argument"))
def test_arguments(name, state, words, capfd):
    model = torch.nn.Linear(2, 2)
    if state == "works":
        assert has_test(name)
    elif state == "later":
        assert f"{name} = True: {words}" in refused(lambda: RaNNCModule(model, **{name: True}))
        RaNNCModule(model, **{name: False})
    else:
        RaNNCModule(model, **{name: name != "check_unused_values"})
        said = [line for line in capfd.readouterr().err.splitlines() if f"{name}=" in line]
        assert len(said) == 1 and "does nothing here: " in said[0]


def test_an_unknown_argument_is_answered_with_arguments():
    with pytest.raises(TypeError, match="'enable_zeros'; did you mean 'enable_zero'"):
        RaNNCModule(torch.nn.Linear(2, 2), enable_zeros=True)
    model = torch.nn.Linear(2, 2)
    for name, words in (
        ("device_ids", "one of torch's DistributedDataParallel: move the model"),
        ("partition_num", r"a setting: RaNNCModule\(..., pyrannc.Config\(partition_num=...\)\)"),
        ("colour", "it takes model, optimizer, config"),
    ):
        with pytest.raises(TypeError, match=f"'{name}'.*{words}"):
            RaNNCModule(model, **{name: 2})
    with pytest.raises(AttributeError, match=r"no join\(\): a rank without rows calls the model"):
        RaNNCModule(model).join()
    with pytest.raises(TypeError, match=r"config is False: .*gather_inputs="):
        RaNNCModule(torch.nn.Linear(2, 2), None, False)


@pytest.mark.parametrize(("name", "state", "words"), rows("method"))
def test_methods(name, state, words):
    if state in ("works", "differs"):
        assert hasattr(RaNNCModule, name) or name in methods.SAME
        assert has_test(name.strip("_")) or name in ("__call__", "__getattr__")
    else:
        assert f"RaNNCModule.{name}()" in refused(getattr(wrapped(), name))


@pytest.mark.parametrize(("name", "state", "words"), rows("argument of a method"))
def test_arguments_of_methods(name, state, words):
    method, argument = name.rstrip(")").split("(")
    module = wrapped()
    if method.startswith("optimizer."):
        (optimizer,) = module._given.optimizers
        for value in (True, False):
            optimizer.load_state_dict(
                optimizer.state_dict(**{argument: value}), **{argument: value}
            )
    else:
        arguments = ["weight"] if method.startswith("get_param") else []
        getattr(module, method)(*arguments, **{argument: True})


def test_the_optimizer_is_freed_as_without_these_methods():
    import gc
    import weakref

    module = wrapped()
    gc.collect()
    optimizer = weakref.ref(module._given.optimizers[0])
    del module
    assert optimizer() is None  # without the collector, which nobody may call


@pytest.mark.parametrize(("name", "state", "words"), rows("setting"))
def test_settings(name, state, words):
    if state in ("works", "differs"):
        new = settings.RENAMED.get(name, name)
        assert new in ITEMS and has_test(name)
        assert name == new or f"`{new}`" in words
        assert not Config(**{"partition_num": 1, name: given(name)}).notes
    elif state == "later":
        line = refused(lambda: Config(**{name: True}))
        assert line == f"{name} = True in Config(...): {plain(words)}"
    else:
        (line,) = Config(**{name: "1"}).notes
        assert words == settings.REPLACED[name] and line.endswith(words)


def given(name):
    if name in settings.RENAMED:
        return {"replica_num": 2}.get(name, True)
    return ITEMS[name].default if name != "partition_num" else 1


def test_tables_of_settings_hold_nothing_else():
    ours = {*settings.RENAMED, *settings.REPLACED}
    variables = {name.removeprefix("RANNC_").lower() for name in names.VARIABLES}
    assert ours <= {*names.SETTINGS, *variables}
    assert {*answers.FUNCTIONS} < {*names.FUNCTIONS} and {*answers.METHODS} < {*names.METHODS}


@pytest.mark.parametrize(("name", "state", "words"), rows("variable of the environment"))
def test_variables(name, state, words, monkeypatch, tmp_path):
    (tmp_path / "rannc_conf.toml").write_text("partition_num = 7\n")
    monkeypatch.setenv(name, str(tmp_path))
    config = Config()
    assert (config.partition_num, len(config.notes)) == ((7, 0) if state == "works" else (0, 1))


@pytest.mark.parametrize(("name", "state", "words"), rows("file"))
def test_files(name, state, words):
    assert has_test(name)


@pytest.mark.parametrize(("name", "state", "words"), rows("logger"))
def test_loggers(name, state, words):
    assert f"`{loggers.LOGGERS[name]}`" in words


@pytest.mark.parametrize(
    ("name", "state", "words"), rows("what its documentation and examples show")
)
def test_recipes(name, state, words):
    """1 is the plain loop, 9 and 10 are models of the zoo; the others have a case of their own."""
    elsewhere = {
        "1": "test_the_plain_loop_trains_as_without_the_wrapper",
        "9": "residual_cnn",
        "10": "tied_lm",
    }
    job = TESTS[ROOT / "tests/support/jobs/original.py"]
    if state == "later":
        assert f"def recipe_{name}_" not in job
    elif name in elsewhere:
        assert has_test(elsewhere[name])
    else:
        assert f"def recipe_{name}_" in job


def test_the_script_of_recipe_3_runs():
    (script,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(script, "recipe 3", "exec"), {})


def test_what_is_missing_is_reported_as_the_wrappers():
    module = wrapped()
    with pytest.raises(AttributeError, match=r"'RaNNCModule' object .*did you mean 'no_sync'"):
        module.no_sinc()
    with pytest.raises(AttributeError, match=r"nor has its model, a Linear; did you mean 'in_fea"):
        module.in_featurs  # noqa: B018
    assert not hasattr(module, "_hf_hook")
    with pytest.raises(AttributeError, match="did you mean 'recreate_all_communicators'"):
        pyrannc.recreate_communicators()
    with pytest.raises(ConfigError, match="did you mean 'trace_events'"):
        Config(trace_event=True)


def test_an_error_inside_a_property_of_the_model_is_its_own():
    class Model(torch.nn.Linear):
        @property
        def hidden(self):
            return self.deep.hidden

    with pytest.raises(AttributeError) as of_model:
        Model(2, 2).hidden  # noqa: B018
    with pytest.raises(AttributeError) as of_wrapper:
        RaNNCModule(Model(2, 2)).hidden  # noqa: B018
    assert str(of_wrapper.value) == str(of_model.value)


def test_parity_has_a_row_for_each_item_and_a_test_for_what_is_there():
    text = PARITY.split("|---|---|---|---|\n")[1]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in text.splitlines()]
    assert [row[0] for row in rows] == [item.strip() for item in names.CHECKLIST]
    for item, state, missing, shown in rows:
        assert (state == "done") == (missing == ""), item
        if state == "open":
            assert not shown, item
            continue
        path, word = re.fullmatch(r"`(\S+)` `(.*)`", shown).groups()
        assert word in (ROOT / path).read_text(), f"{item}: {word} is not in {path}"

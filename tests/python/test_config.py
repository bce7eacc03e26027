from fractions import Fraction

import pytest

from pyrannc import ConfigError
from pyrannc.config import ITEMS, Config
from pyrannc.original.settings import REPLACED
from pyrannc.profiling.cache import ProfileCache


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ITEMS:
        monkeypatch.delenv(f"RANNC_{name.upper()}", raising=False)
    monkeypatch.delenv("RANNC_CONF_DIR", raising=False)


def write_conf(monkeypatch, tmp_path, text):
    (tmp_path / "rannc_conf.toml").write_text(text)
    monkeypatch.setenv("RANNC_CONF_DIR", str(tmp_path))


def test_an_argument_beats_the_environment_which_beats_the_file(monkeypatch, tmp_path):
    write_conf(monkeypatch, tmp_path, "partition_num = 2\npipeline_num = 2\nmem_margin = 0.2\n")
    monkeypatch.setenv("RANNC_PARTITION_NUM", "3")
    monkeypatch.setenv("RANNC_PIPELINE_NUM", "4")
    config = Config(partition_num=5)
    assert (config.partition_num, config.pipeline_num, config.mem_margin) == (5, 4, 0.2)


def test_a_user_without_a_folder_has_no_file(monkeypatch):
    def unknown(user):
        raise KeyError(user)

    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    assert Config().partition_num == 0
    assert ProfileCache("", environment={}).read(["linear"]) == {}


@pytest.mark.parametrize("text", ["true", "1", "yes", "True"])
def test_booleans_take_every_usual_word(monkeypatch, text):
    monkeypatch.setenv("RANNC_SAVE_DEPLOYMENT", text)
    assert Config().save_deployment is True


def test_any_other_boolean_is_an_error_that_names_the_variable(monkeypatch):
    monkeypatch.setenv("RANNC_SAVE_DEPLOYMENT", "on")
    with pytest.raises(ConfigError, match=r"save_deployment = 'on' .*RANNC_SAVE_DEPLOYMENT.*true"):
        Config()


def test_replica_nums_reads_a_comma_list(monkeypatch):
    monkeypatch.setenv("RANNC_REPLICA_NUMS", "1,3")
    assert Config().replica_nums == (1, 3)


@pytest.mark.parametrize(
    "items",
    [
        {"pipline_num": 4},
        {"replica_nums": 3},
        {"mem_margin": 1.0},
        {"partition_num": -1},
        {"partition_num": 1.5},
        {"recompute": "sometimes"},
        {"partition_num": Fraction(3, 2)},
        {"partition_num": 2**31},
        {"partition_num": 1e300},
        {"mem_limit_gb": "nan"},
        {"mem_limit_gb": True},
        {"mem_limit_gb": 1e300},
        {"replica_nums": {1, 2}},
        {"replica_nums": {1: 2}},
        {"replica_nums": b"12"},
        {"metrics_file": "a\0b"},
        {"profile_cache": None},
    ],
)
def test_a_wrong_argument_is_an_error_that_names_it(items):
    with pytest.raises(ConfigError, match=next(iter(items))):
        Config(**items)


def test_replicas_of_another_number_of_stages_are_refused():
    with pytest.raises(ConfigError, match=r"\[1, 1, 1\] is of 3 stages, but partition_num = 2"):
        Config(partition_num=2, replica_nums=[1, 1, 1])


def test_an_unknown_name_names_the_closest_one(monkeypatch):
    with pytest.raises(ConfigError, match="did you mean 'pipeline_num'"):
        Config(pipline_num=4)
    monkeypatch.setenv("RANNC_PARTITON_NUM", "2")
    with pytest.raises(ConfigError, match=r"RANNC_PARTITON_NUM.*did you mean 'partition_num'"):
        Config()


@pytest.mark.parametrize("name", ["PARTITION_NUM", "RANNC_PARTITION_NUM"])
def test_a_setting_as_a_variable_is_written_names_the_setting(monkeypatch, tmp_path, name):
    write_conf(monkeypatch, tmp_path, f"{name} = 2\n")
    with pytest.raises(ConfigError, match=f"unknown setting '{name}' .*mean 'partition_num'"):
        Config()


def test_a_malformed_file_is_an_error_with_file_and_line(monkeypatch, tmp_path):
    write_conf(monkeypatch, tmp_path, "partition_num = 2\npipeline_num = = 3\n")
    with pytest.raises(ConfigError, match=r"rannc_conf\.toml: .*line 2"):
        Config()


def test_an_unknown_name_in_the_file_names_file_and_closest(monkeypatch, tmp_path):
    write_conf(monkeypatch, tmp_path, "partition_nums = 2\n")
    with pytest.raises(ConfigError, match=r"'partition_nums' in .*rannc_conf\.toml; did you mean"):
        Config()


def test_what_is_like_no_setting_gets_no_guess():
    with pytest.raises(ConfigError, match=r"setting 'batch' in Config\(...\)\. docs/settings.md"):
        Config(batch=3)


def test_a_named_folder_without_the_file_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("RANNC_CONF_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="there is no"):
        Config()


def test_a_variable_that_names_no_folder_is_as_if_it_were_not_there(monkeypatch, tmp_path):
    monkeypatch.setenv("RANNC_CONF_DIR", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Config().partition_num == 0


def test_the_page_of_settings_lists_every_item():
    from pathlib import Path

    page = Path(__file__).parents[2].joinpath("docs/settings.md").read_text()
    for name, item in ITEMS.items():
        assert f"| `{name}` | `RANNC_{name.upper()}` | `{item.default!r}` | {item.help} |" in page


def test_a_wait_of_no_seconds_is_refused():
    with pytest.raises(ConfigError, match=r"comm_timeout_s = 0 in Config.*more than 0 seconds"):
        Config(comm_timeout_s=0)


def test_a_setting_of_the_original_is_one_of_ours(monkeypatch, tmp_path):
    write_conf(monkeypatch, tmp_path, "run_watchdog = false\ncheckpointing = true\n")
    monkeypatch.setenv("RANNC_REPLICA_NUM", "2")
    config = Config(partition_num=3)
    assert (config.recompute, config.end_job_on_error) == ("always", False)
    assert config.replica_nums == (2, 2, 2)
    assert not config.notes
    monkeypatch.delenv("RANNC_REPLICA_NUM")
    config = Config(checkpointing=False, replica_num=0)
    assert (config.recompute, config.replica_nums) == ("auto", ())


def test_replicas_for_each_stage_need_the_number_of_stages():
    with pytest.raises(ConfigError, match="replica_num = 2 needs partition_num"):
        Config(replica_num=2)


def test_a_setting_and_its_old_name_are_not_given_together():
    with pytest.raises(ConfigError, match="'recompute' and its old name 'checkpointing'"):
        Config(recompute="never", checkpointing=True)
    with pytest.raises(ConfigError, match="'recompute' and its old name 'checkpointing'"):
        Config(checkpointing=True, recompute="never")


def test_what_was_replaced_is_accepted_with_a_line(monkeypatch):
    monkeypatch.setenv("RANNC_DECOMPOSER", "ml_part")
    (line,) = Config().notes
    assert "'decomposer' in the environment (RANNC_DECOMPOSER)" in line
    assert "\n" not in line and REPLACED["decomposer"] in line


def test_a_trace_of_events_has_the_names_of_the_original(monkeypatch):
    monkeypatch.setenv("RANNC_TRACE_EVENTS", "true")
    monkeypatch.setenv("RANNC_EVENT_TRACE_FILE", "t.json")
    config = Config()
    assert config.trace_events and config.event_trace_file == "t.json" and not config.notes


@pytest.mark.parametrize(("given", "taken"), [("none", 1), ("auto", "auto"), ("2", 2), (4, 4)])
def test_ranks_that_compute_layers_together_are_a_number_or_a_word(given, taken):
    assert Config(tensor_parallel=given).tensor_parallel == taken


def test_where_groups_may_come_draws_are_told_by_place():
    assert not Config().draws_by_key
    config = Config(tensor_parallel="auto")
    assert config.draws_by_key
    assert config.with_groups(1).draws_by_key
    assert (config.with_groups(2).tensor_parallel, config.tensor_parallel) == (2, "auto")

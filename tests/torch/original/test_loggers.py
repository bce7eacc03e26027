import logging

import pytest

from pyrannc import _C, ConfigError, log
from pyrannc.config import Config
from pyrannc.original import loggers


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RANNC_CONF_DIR", raising=False)
    monkeypatch.delenv("RANNC_LOG_LEVEL", raising=False)
    yield
    log.configure("warn")


def shown(level, module):
    return _C.util.log_enabled(getattr(_C.util.Level, level), module)


@pytest.mark.parametrize("name", loggers.LOGGERS)
def test_each_logger_is_a_module(name):
    log.configure("off")
    assert not shown("error", loggers.LOGGERS[name])
    log.configure(f"off,{name}=debug")
    assert shown("debug", loggers.LOGGERS[name])


def test_levels_of_the_original_are_understood():
    assert loggers.translate("SComm=trace,err") == "error,comm=debug"
    log.configure("SComm=critical")
    assert shown("error", "comm") and not shown("warn", "comm")


def test_of_two_loggers_of_one_module_the_one_that_says_more_counts():
    assert loggers.translate("SComm=debug,NCCLWrapper=err") == "comm=debug"
    assert loggers.translate("SComm=debug,comm=warn") == "comm=debug,comm=warn"  # the last one


@pytest.mark.parametrize(
    ("levels", "hint"),
    [("SCom=debug", "'SComm'"), ("com=debug", "'comm'"), ("SComm=loud", "level 'loud'")],
)
def test_a_wrong_name_is_answered_with_one_of_its_kind(levels, hint):
    with pytest.raises(ConfigError, match=hint):
        log.configure(levels)


LOGGING_TOML = """
global_pattern = "[%T] <%n>: %v"
[[sink]]
name = "console"
type = "color_stdout_sink_st"
[[logger]]
name = "root"
sinks = ["console"]
level = "err"
[[logger]]
name = "DPStaging"
sinks = ["console"]
level = "trace"
[[logger]]
name = "GraphUtil"
level = "info"
"""


def test_logging_toml_counts_without_the_other_file(monkeypatch, tmp_path):
    folder = tmp_path / ".pyrannc"
    folder.mkdir()
    (folder / "logging.toml").write_text(LOGGING_TOML)
    assert Config().log_level == "error,partition=debug,ir=info"
    monkeypatch.setenv("RANNC_CONF_DIR", str(folder))
    log.configure(Config().log_level)
    assert shown("debug", "partition") and shown("info", "ir") and not shown("warn", "comm")
    (folder / "rannc_conf.toml").write_text("partition_num = 2\n")
    assert (Config().partition_num, Config().log_level[:5]) == (2, "error")
    monkeypatch.setenv("RANNC_LOG_LEVEL", "SComm=debug")
    assert Config().log_level == "SComm=debug"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[[logger]]\nlevel = 'info'\n", r"logging\.toml: each \[\[logger\]\] needs a name"),
        ("[[logger]\n", r"logging\.toml: .*line 1"),
        ("[[logger]]\nname = 'DPStagin'\nlevel = 'info'\n", r"logging\.toml: .*'DPStaging'"),
    ],
)
def test_a_malformed_logging_toml_is_an_error_that_names_it(monkeypatch, tmp_path, text, match):
    (tmp_path / "logging.toml").write_text(text)
    monkeypatch.setenv("RANNC_CONF_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match=match):
        Config()


def test_the_python_logger_gets_the_lines_of_the_python_side(caplog, capfd):
    log.configure("off")
    with caplog.at_level(logging.INFO, logger="rannc"):
        log.debug("deploy", "hidden")
        log.info("deploy", "the plan")
        log.warn("module", "careful")
    assert [(r.name, r.levelname, r.getMessage()) for r in caplog.records] == [
        ("rannc", "INFO", "deploy: the plan"),
        ("rannc", "WARNING", "module: careful"),
    ]


def test_a_line_is_printed_once_where_nobody_has_set_up_logging(tmp_path):
    import subprocess
    import sys

    code = "from pyrannc import log; log.configure('warn'); log.warn('module', 'careful')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.count("careful") == 1

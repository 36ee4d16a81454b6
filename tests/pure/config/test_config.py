"""The configuration: defaults, files, overrides, and every way to get them wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from herasys_rt.config import (
    Config,
    PoolConfig,
    SchedulerConfig,
    default_config,
    default_text,
    dump_config,
    load_config,
    mask_dsn,
    with_modelled_engines,
)
from herasys_rt.errors import ConfigError
from herasys_rt.graph.hashing import HASHES, SHA256

ROOT = Path(__file__).parents[3]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return path


def refused(path: Path | None, environ: dict[str, str] | None = None) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_config(path, environ or {})
    assert caught.value.code == "invalid_config"
    return caught.value


def faults(path: Path | None, environ: dict[str, str] | None = None) -> list[str]:
    return list(refused(path, environ).fields["faults"])


# --- defaults -----------------------------------------------------------------------
def test_nothing_configured_gives_the_laptop_defaults() -> None:
    assert load_config(None, {}) == default_config()


def test_defaults_are_real_engines_one_pool_per_resource() -> None:
    pools = {pool.name: pool for pool in default_config().pools}
    assert {name: pool.engine for name, pool in pools.items()} == {
        "llm": "vllm",
        "embedding": "sentence_transformers",
        "rerank": "late_interaction",
        "retrieval": "pgvector",
        "search": "web_search",
        "python": "python",
    }
    assert pools["search"].options == {"provider": "local"}
    assert pools["python"].options == {"workers": 4}
    assert (pools["llm"].model, pools["llm"].slots) == ("smollm2-135m", 16)
    assert pools["llm"].options == {"max_model_len": 2048, "kv_cache_memory_mb": 256}
    assert (pools["embedding"].batch_limit, pools["retrieval"].slots) == (8, 8)


def test_the_schema_and_the_shipped_file_state_the_same_defaults() -> None:
    assert Config(pools=default_config().pools) == default_config()


def test_the_file_in_configs_is_the_built_in_default() -> None:
    assert (ROOT / "configs/local-cpu.yaml").read_text() == default_text()


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "pools:\n", "scheduler:\n"])
def test_an_empty_file_gives_the_defaults(tmp_path: Path, text: str) -> None:
    assert load_config(written(tmp_path, text), {}) == default_config()


def test_a_file_says_only_what_differs(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, "scheduler:\n  max_attempts: 5\n"), {})
    assert config.scheduler.max_attempts == 5
    assert config.scheduler.ordering == "workflow_fcfs"
    assert config.pools == default_config().pools


def test_a_file_that_lists_pools_lists_all_of_them(tmp_path: Path) -> None:
    text = "pools:\n  - {name: a, resource: retrieval, engine: pgvector}\n"
    assert [p.name for p in load_config(written(tmp_path, text), {}).pools] == ["a"]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_configuration_loads(path: Path) -> None:
    assert load_config(path, {}).pools


# --- overrides ----------------------------------------------------------------------
def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "scheduler:\n  ordering: fcfs\n")
    config = load_config(path, {"HERASYS_SCHEDULER__ORDERING": "horizon"})
    assert config.scheduler.ordering == "horizon"


def test_a_pool_is_overridden_by_its_name(tmp_path: Path) -> None:
    text = "pools:\n  - {name: big-llm, resource: llm, engine: vllm, model: m}\n"
    environ = {
        "HERASYS_POOLS__BIG_LLM__SLOTS": "8",
        "HERASYS_POOLS__BIG_LLM__OPTIONS__MAX_MODEL_LEN": "4096",
    }
    pool = load_config(written(tmp_path, text), environ).pools[0]
    assert (pool.slots, pool.options) == (8, {"max_model_len": 4096})


def test_reuse_times_go_over_the_defaults_and_name_verbs_that_there_are() -> None:
    env = "HERASYS_SCHEDULER__REUSE__TTL_S"
    config = load_config(None, {env: "{embed: 5, http.search: null}"})
    assert config.scheduler.reuse.ttl_s == {
        "llm.generate": 3600.0,
        "http.search": None,
        "embed": 5.0,
    }
    with pytest.raises(
        ConfigError, match=r"no verb llm\.genrate; there are .*llm\.generate"
    ):
        load_config(None, {env: "{llm.genrate: 30}"})


def test_override_values_are_yaml_except_where_text_is_wanted() -> None:
    config = load_config(
        None,
        {
            "HERASYS_SCHEDULER__FUSION": "false",
            "HERASYS_SCHEDULER__FUSION_HASH": "xxh3",
            "HERASYS_SCHEDULER__REUSE__TTL_S": "{embed: 5}",
            "HERASYS_DATABASE__DSN": "host=h password=a#b: c",
            "HERASYS_POOLS__LLM__MODEL": "1e5",
        },
    )
    assert config.scheduler.fusion is False
    assert config.scheduler.fusion_hash == "xxh3"
    assert config.scheduler.reuse.ttl_s["embed"] == 5.0
    assert config.database.dsn is not None
    assert config.database.dsn.get_secret_value() == "host=h password=a#b: c"
    assert config.pools[0].model == "1e5"


def test_an_override_can_take_a_value_back() -> None:
    config = load_config(None, {"HERASYS_RAY__ADDRESS": "null"})
    assert config.ray.address is None


def test_switches_of_the_runtime_are_no_overrides() -> None:
    environ = {"HERASYS_DEBUG": "1", "HERASYS_RUN_DIR": "/run", "OTHER__X": "1"}
    assert load_config(None, environ) == default_config()


def test_a_misspelt_override_names_the_nearest_key() -> None:
    told = faults(
        None,
        {
            "HERASYS_SCHEDULER__ORDERNG": "x",
            "HERASYS_POOLS__LM__SLOTS": "1",
            "HERASYS_POOLS__LLM__SLOTZ": "1",
            "HERASYS_SCHEDULAR__ORDERING": "x",
            "HERASYS_RAY_ADDRESS": "auto",
        },
    )
    assert told == [
        "HERASYS_POOLS__LLM__SLOTZ: unknown key 'slotz'; did you mean 'slots'?",
        "HERASYS_POOLS__LM__SLOTS: no pool 'lm'; did you mean 'llm'?",
        "HERASYS_RAY_ADDRESS: unknown key 'ray_address'; did you mean "
        "HERASYS_RAY__ADDRESS?",
        "HERASYS_SCHEDULAR__ORDERING: unknown key 'schedular'; did you mean 'scheduler'?",
        "HERASYS_SCHEDULER__ORDERNG: unknown key 'orderng'; did you mean 'ordering'?",
    ]


def test_a_wrong_override_is_blamed_on_its_variable() -> None:
    (told,) = faults(None, {"HERASYS_POOLS__LLM__SLOTS": "many"})
    assert told.startswith("HERASYS_POOLS__LLM__SLOTS: ")
    assert "'many'" in told


# --- faults of a file ---------------------------------------------------------------
def test_all_faults_are_told_at_once_with_their_lines(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "schedular: {}\n"
        "scheduler:\n"
        "  orderng: x\n"
        "  max_attempts: 0\n"
        "pools:\n"
        "  - name: llm\n"
        "    resource: llm\n"
        "    engine: vlm\n"
        "    slotz: 3\n",
    )
    error = refused(path)
    assert sorted(error.fields["faults"]) == [
        "pools.llm.engine (line 8): Input should be 'vllm', 'openai', "
        "'sentence_transformers', 'vllm_pooling', 'late_interaction', 'cross_encoder', "
        "'pgvector', 'web_search', 'python' or 'modelled', got 'vlm'; did you mean 'vllm'?",
        "pools.llm.slotz (line 9): unknown key; did you mean 'slots'?",
        "schedular (line 1): unknown key; did you mean 'scheduler'?",
        "scheduler.max_attempts (line 4): Input should be greater than or equal to 1, "
        "got 0",
        "scheduler.orderng (line 3): unknown key; did you mean 'ordering'?",
    ]
    assert f"{path} has 5 faults:" in error.message
    assert error.hint


def test_a_key_like_no_other_lists_the_known_ones(tmp_path: Path) -> None:
    (told,) = faults(written(tmp_path, "ray:\n  zzz: 1\n"))
    expected = "known: address, num_cpus, dashboard, object_store_mb, autoscaling"
    assert told == f"ray.zzz (line 2): unknown key; {expected}"


def test_a_syntax_error_tells_its_line(tmp_path: Path) -> None:
    path = written(tmp_path, "ray:\n  address: [1,\nscheduler: {}\n")
    message = refused(path).message
    assert f"{path}, line 4: expected" in message
    assert "that began on line 2" in message
    assert f"{path}, line 2:" in refused(written(tmp_path, "a: 1\nb: c: d\n")).message


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "ray: {}\nscheduler: {}\nray: {}\n")
    message = refused(path).message
    assert "line 3" in message
    assert "'ray' is given twice (first on line 1)" in message


@pytest.mark.parametrize(("text", "kind"), [("- 1\n", "list"), ("hello\n", "str")])
def test_a_file_without_sections_is_refused(tmp_path: Path, text: str, kind: str) -> None:
    assert f"holds a {kind}" in refused(written(tmp_path, text)).message


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "absent.yaml"
    error = refused(path)
    assert str(path) in error.message
    assert error.hint


def test_a_folder_and_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    assert "cannot be read" in refused(tmp_path).message
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"\xff\xfe\xfa\x00")
    assert "no UTF-8 text" in refused(path).message


def test_a_control_character_is_refused_with_a_next_step(tmp_path: Path) -> None:
    error = refused(written(tmp_path, "ray: \x07\n"))
    assert "is no YAML text" in error.message
    assert error.hint


def test_yaml_that_would_build_objects_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "ray: !!python/object/apply:os.getcwd []\n")
    assert "could not determine a constructor" in refused(path).message


@pytest.mark.parametrize(
    ("pool", "problem"),
    [
        ({"engine": "pgvector", "model": None}, "does not serve resource 'llm'"),
        ({"model": None}, "needs a model"),
        ({"gpu_class": "H100"}, "gpus is 0"),
        ({"gpus": 1.5, "gpu_class": "H100"}, "must be whole"),
        ({"resource": "embedding", "engine": "vllm_pooling", "role": "decode"}, "role"),
        ({"resource": "retrieval", "engine": "pgvector"}, "has no model"),
        ({"resource": "search", "engine": "web_search"}, "a search pool has no model"),
        ({"resource": "python", "engine": "python"}, "a python pool has no model"),
        ({"slots": 0}, "greater than or equal to 1"),
        ({"cpus": float("nan")}, "finite"),
        ({"name": "My Pool"}, "lower-case"),
        ({"instances": True, "slots": "eight"}, "valid integer"),
    ],
)
def test_a_pool_that_cannot_work_is_refused(
    tmp_path: Path, pool: dict[str, object], problem: str
) -> None:
    whole = {"name": "a", "resource": "llm", "engine": "vllm", "model": "m", **pool}
    told = faults(written(tmp_path, yaml.safe_dump({"pools": [whole]})))
    assert any(problem in line for line in told), told


def test_two_pools_of_a_resource_need_one_default(tmp_path: Path) -> None:
    pools = [{"name": name, "resource": "retrieval", "engine": "pgvector"} for name in "ab"]
    (told,) = faults(written(tmp_path, yaml.safe_dump({"pools": pools})))
    assert "exactly one must say 'default: true'" in told
    pools[0]["default"] = "true"
    assert load_config(written(tmp_path, yaml.safe_dump({"pools": pools})), {})


def test_two_pools_of_one_name_are_refused(tmp_path: Path) -> None:
    pool = {"name": "a", "resource": "retrieval", "engine": "pgvector", "default": True}
    (told,) = faults(written(tmp_path, yaml.safe_dump({"pools": [pool, pool]})))
    assert "given twice: a" in told


# --- showing ------------------------------------------------------------------------
SECRET = "s3cret"


@pytest.mark.parametrize(
    ("dsn", "masked"),
    [
        (f"postgresql://u:{SECRET}@h:5432/d", "postgresql://u:***@h:5432/d"),
        (f"postgresql://u:{SECRET}@x@h/d", "postgresql://u:***@h/d"),
        (f"host=/tmp user=u password={SECRET} dbname=d", "host=/tmp user=u password=*** "),
        (f"host=h password='{SECRET} b' port=1", "host=h password=*** port=1"),
        (f"postgresql:///d?host=/r&password={SECRET}&user=u", "password=***&user=u"),
        ("postgresql://u@h/d", "postgresql://u@h/d"),
    ],
)
def test_a_dsn_is_shown_without_its_password(dsn: str, masked: str) -> None:
    assert masked in mask_dsn(dsn)
    assert SECRET not in mask_dsn(dsn)


def test_a_dump_shows_no_secret_and_loads_as_yaml() -> None:
    environ = {
        "HERASYS_DATABASE__DSN": f"postgresql://u:{SECRET}@h/d",
        "HERASYS_POOLS__LLM__OPTIONS__API_KEY": SECRET,
        "HERASYS_POOLS__LLM__OPTIONS__API_KEY_ENV": "NAME_OF_VARIABLE",
    }
    dumped = dump_config(load_config(None, environ))
    assert SECRET not in dumped
    assert "NAME_OF_VARIABLE" in dumped
    assert yaml.safe_load(dumped)["pools"][0]["name"] == "llm"


def test_a_dump_of_the_defaults_loads_to_the_defaults(tmp_path: Path) -> None:
    path = written(tmp_path, dump_config(default_config()))
    assert load_config(path, {}) == default_config()


def test_a_wrong_secret_is_not_repeated_in_its_fault(tmp_path: Path) -> None:
    (told,) = faults(written(tmp_path, "database:\n  dsn: 12345\n"))
    assert "12345" not in told


# --- modelled -----------------------------------------------------------------------
def test_modelled_engines_keep_the_shape_of_the_cluster() -> None:
    config = load_config(ROOT / "configs/gpu-4x4090.yaml", {})
    modelled = with_modelled_engines(config)
    assert {pool.engine for pool in modelled.pools} == {"modelled"}

    def shape(pool: PoolConfig) -> tuple[object, ...]:
        return (pool.name, pool.instances, pool.gpus, pool.gpu_class, pool.slots)

    assert list(map(shape, modelled.pools)) == list(map(shape, config.pools))
    assert Config.model_validate(modelled.model_dump()) == modelled


def test_the_hashes_that_can_be_chosen_are_those_there_are() -> None:
    for name in HASHES:
        assert (
            Config(scheduler=SchedulerConfig(fusion_hash=name)).scheduler.fusion_hash
            == name
        )
    assert SchedulerConfig().fusion_hash == SHA256.name
    (fault,) = faults(None, {"HERASYS_SCHEDULER__FUSION_HASH": "md5"})
    assert "fusion_hash" in fault.lower()
    assert "sha256" in fault

"""Every cell of every experiment is possible; the files of sweeps, launchers and sizes are whole."""

from __future__ import annotations

import pytest
import theirs
from conf.files import ALIKE, EXPERIMENTS, FILES, RANDOM, TRAINED, cell_config, run, shrunk, slow_if
from hydra.core.config_loader import ConfigLoader
from hydra.core.plugins import Plugins
from hydra.errors import ConfigCompositionException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from paradigms import zoo
from paradigms.build import build
from paradigms.grid import Composer, expand, plan_cells
from paradigms.plan import PlannedCell, SweepOptions
from paradigms.train import MODELS

pytestmark = pytest.mark.usefixtures("home")


def planned(loader: ConfigLoader, master: DictConfig, arguments: list[str]) -> list[PlannedCell]:
    """The cells of a sweep, each composed and checked, as the command line plans them."""
    params = OmegaConf.to_container(master.hydra.sweeper.params) if master.hydra.sweeper.params else {}
    assert isinstance(params, dict)
    grid = expand(loader, {str(key): value for key, value in params.items()}, arguments)
    return plan_cells(Composer(loader, master), grid, master.sweep.exclude, master.sweep.also)


@pytest.mark.parametrize("name", [slow_if(name, name in ALIKE) for name in EXPERIMENTS])
def test_every_cell_of_an_experiment_is_possible_and_two_run(name, loader, compose, monkeypatch, tmp_path):
    monkeypatch.setattr("paradigms.cell.gpu_names", lambda: ("a GPU",))  # some experiments are for one
    arguments = [f"experiment={name}"]
    master = compose(*arguments)
    if master.train.source == "zoo" and not set(MODELS) <= set(zoo.names()):
        arguments += ["train=quick"]
        master = compose(*arguments)
    of_others = "smollm2" in name
    if of_others:
        arguments += [f"model.path={theirs.write_folder(tmp_path / 'theirs')}", "workload.prompt_len=8,9"]
    assert master.sweep.name == name, "its records lie in a folder of its name"
    cells = planned(loader, master, arguments)
    assert len(cells) >= 2
    assert len({cell.name for cell in cells}) == len({cell.key for cell in cells}) == len(cells)
    for cell in (cells[0], cells[-1]):
        here = {"name": "cpu"} if cell.config["device"]["name"] == "cuda" else {}
        here["execution"] = "eager"  # compiling takes its time; tests/models/test_execution.py does it
        small = cell.config if of_others else shrunk(cell.config)
        run(small | {"device": {**cell.config["device"], **here}})


def test_cells_beside_a_grid_take_over_what_they_have_a_key_for(loader, compose):
    """`sweep.also`: an autoregressive reference has the lengths and temperature of the grid, not its samplers."""
    arguments = ["paradigm=diffusion", "decoder/sampler=random,margin", "decoder/cache=dual", "decoder.block_len=8,16",
                 "workload.output_len=32,64", "decoder.temperature=0.5", *RANDOM]  # fmt: skip
    also = [["paradigm=ar,ssm"], ["paradigm=diffusion", "decoder/cache=none", "decoder/sampler=first_hitting"]]
    composer = Composer(loader, compose(*RANDOM))
    grid = expand(loader, {}, arguments)
    cells = plan_cells(composer, grid, [{"decoder.sampler": "first_hitting", "decoder.block_len": 8}], also)
    assert len(grid) == 8 and [cell.name for cell in cells[8:]] == [
        "ar, output_len=32",
        "ar, output_len=64",
        "ssm, output_len=32",
        "ssm, output_len=64",
        "diffusion, sampler=first_hitting, cache=none, block_len=16, output_len=32",
        "diffusion, sampler=first_hitting, cache=none, block_len=16, output_len=64",
    ]
    for cell in cells:
        assert cell.factors["decoder.temperature"] == 0.5, "a key that all have is set in all"
    assert cells[0].name == "diffusion, sampler=random, cache=dual, block_len=8, output_len=32"
    assert len({cell.key for cell in cells}) == len(cells), "samplers with equal settings are different cells"
    assert [cells[0].factors[name] for name in ("decoder.sampler", "decoder.cache")] == ["random", "dual"]
    with pytest.raises(ConfigCompositionException):
        plan_cells(composer, grid, [], [["paradigm=ar", "decoder.blok_len=8"]])


def test_the_default_command_is_one_cell(loader, compose):
    (cell,) = planned(loader, compose(*TRAINED), TRAINED)
    assert cell.factors["paradigm.name"] == "ar" and cell.name == "ar"


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("sweep/")])
def test_sweep_files_are_whole(name, compose):
    values = OmegaConf.to_container(compose(name.replace("/", "="), *TRAINED).sweep, resolve=True)
    assert isinstance(values, dict)
    SweepOptions(**{str(key): value for key, value in values.items()})


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("launch/")])
def test_launch_files_choose_a_launcher(name, compose):
    try:
        master = compose(name.replace("/", "="))
    except MissingConfigException as error:
        pytest.skip(f"needs a package of an extra: {error.missing_cfg_file}")
    assert master.launch.lanes >= 1
    target = OmegaConf.to_container(master.hydra.launcher, resolve=True)
    assert isinstance(target, dict) and target["_target_"]


@pytest.mark.parametrize("size", [name.partition("/")[2] for name in FILES if name.startswith("size/")])
def test_a_size_has_equal_parameters_in_every_kind_of_model(size, compose):
    options = ["train=random", "measure=latency", f"size={size}"]
    models = [build(cell_config(compose(f"paradigm={name}", *options))).model for name in ("ar", "ssm", "diffusion")]
    parameters = [model.num_parameters() for model in models]
    assert max(parameters) <= 1.01 * min(parameters)
    assert len({(model.max_positions, model.d_model) for model in models}) == 1


def test_a_size_that_a_model_does_not_have_is_an_error(compose):
    with pytest.raises(OmegaConfBaseException, match="no_file_in_conf_sized_for_this_model"):
        cell_config(compose("paradigm=mamba", "size=1b", "train=random", "measure=latency"))


def test_hydra_finds_our_sweeper(compose):
    target = compose().hydra.sweeper._target_
    assert target.rpartition(".")[2] in {plugin.__name__ for plugin in Plugins.instance().discover()}

"""Trainers whose batches are on a device, with a model that nobody may move there as a whole."""

import mpi
import pytest
import standin


@pytest.mark.skipif(not standin.built(), reason=f"{standin.LIBRARY} was not built")
def test_only_a_part_of_the_model_comes_to_a_device():
    done = mpi.run([str(mpi.JOBS / "trainers_on_devices.py")], 2, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("done") == 2


def test_an_accelerator_that_was_made_before_the_ranks_were_known_is_refused():
    done = mpi.run(
        """
        import accelerate

        accelerate.PartialState()  # takes itself for the only process
        from pyrannc import ConfigError
        from pyrannc.integrations.accelerate import Accelerator

        try:
            Accelerator()
        except ConfigError as error:
            print(error)
        """,
        2,
    )
    assert done.stdout.count("Accelerate knows of 1 processes, and the job has 2 ranks") == 2, done


def test_it_knows_the_ranks_of_a_host_without_accelerators():
    done = mpi.run(
        """
        from torch.utils.data import DataLoader

        import pyrannc
        from pyrannc.integrations.accelerate import Accelerator

        accelerator, seen = Accelerator(), []
        assert accelerator.num_processes == 2
        assert accelerator.process_index == pyrannc.get_rank()
        for batch in accelerator.prepare(DataLoader(list(range(8)), batch_size=2)):
            seen += accelerator.gather(batch).tolist()
        assert seen == list(range(8)), seen
        print("all right", flush=True)
        """,
        2,
    )
    assert done.stdout.count("all right") == 2, done.stderr[-3000:]

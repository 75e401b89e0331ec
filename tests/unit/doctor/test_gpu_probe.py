"""The driver's files as they are on a machine with an H200, and what its program may say."""

from pathlib import Path

from recoverrun.doctor.gpu_probe import Gpus, gpus, troubles

VERSION = """NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build
GCC version:  gcc version 15.3.0 (GCC)
"""
INFORMATION = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 41\nGPU Firmware: \t 580.159.04\n"


def test_models_and_driver_are_read_where_the_driver_tells_them(tmp_path: Path) -> None:
    (tmp_path / "version").write_text(VERSION)
    for place in ("0000:00:06.0", "0000:00:07.0"):
        (tmp_path / "gpus" / place).mkdir(parents=True)
        (tmp_path / "gpus" / place / "information").write_text(INFORMATION)

    found = gpus(tmp_path)

    assert found.there
    assert found.words == "2 x NVIDIA H200, driver 580.159.04"


def test_without_a_driver_there_is_nothing(tmp_path: Path) -> None:
    assert gpus(tmp_path) == Gpus()


def test_a_gpu_that_is_not_well_is_named() -> None:
    assert troubles("0, 0, Not Active\n1, 2, Not Active\n2, [N/A], Active\n") == [
        "GPU 1: 2 memory errors that ECC could not correct",
        "GPU 2: its clock is slowed down by heat or lack of power",
    ]
    assert troubles("") == []

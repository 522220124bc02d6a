"""Ships what lies beside the packages in a checkout, the scenarios and the reference results, inside the wheel."""

from pathlib import Path
from shutil import copytree, ignore_patterns

from setuptools import setup
from setuptools.command.build_py import build_py

SHIPPED = {"scenarios": "workbench/_scenarios", "results/reference": "workbench/_reference"}


class BuildWithData(build_py):
    """``build_py`` that copies the folders of ``SHIPPED``; an editable install reads them where they are."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        compiled = ignore_patterns("__pycache__")
        for source, target in SHIPPED.items():
            if Path(source).is_dir():
                copytree(source, Path(self.build_lib) / target, dirs_exist_ok=True, ignore=compiled)


setup(cmdclass={"build_py": BuildWithData})

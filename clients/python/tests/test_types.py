"""That the package is typed throughout."""

import ast
import importlib
import inspect
import pathlib
import pkgutil
import sys
import typing
import unittest

import stint

SOURCE = pathlib.Path(stint.__file__).parent


class Types(unittest.TestCase):
    def modules(self):
        return [importlib.import_module(f"stint.{m.name}") for m in pkgutil.iter_modules([str(SOURCE)])]

    def test_annotations(self):
        """Every function and class has annotations, and all of them mean something."""
        seen = 0
        for module in [stint, *self.modules()]:
            for thing in vars(module).values():
                if getattr(thing, "__module__", "").split(".")[0] != "stint":
                    continue
                functions = [thing] if inspect.isfunction(thing) else []
                if inspect.isclass(thing):
                    typing.get_type_hints(thing)
                    functions = [f for f in vars(thing).values() if inspect.isfunction(f)]
                    functions += [f.fget for f in vars(thing).values() if isinstance(f, property)]
                for f in functions:
                    if not f.__code__.co_filename.startswith(str(SOURCE)):  # what dataclass makes
                        continue
                    hints = typing.get_type_hints(f)
                    missing = [p for p in inspect.signature(f).parameters if p not in hints and p not in ("self", "cls")]
                    self.assertTrue(not missing and "return" in hints, f"{f.__qualname__}: {missing}")
                    seen += 1
        self.assertGreater(seen, 100)

    def test_public(self):
        for name in stint.__all__:
            self.assertTrue((getattr(stint, name).__doc__ or "").strip(), name)
        for client in (stint.Client, stint.AsyncClient):
            for name, f in vars(client).items():
                if not name.startswith("_"):
                    self.assertTrue(f.__doc__, name)
        calls = [{n for n in vars(c) if not n.startswith("_")} for c in (stint.Client, stint.AsyncClient)]
        self.assertEqual(*calls)
        self.assertTrue((SOURCE / "py.typed").exists())

    def test_old_python(self):
        """The syntax is that of Python 3.9."""
        for file in SOURCE.glob("*.py"):
            ast.parse(file.read_text(), feature_version=(3, 9))

    def test_no_dependencies(self):
        for module in self.modules():
            for name in vars(module).values():
                if inspect.ismodule(name):
                    top = name.__name__.split(".")[0]
                    self.assertIn(top, [*sys.stdlib_module_names, "stint"])

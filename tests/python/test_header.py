"""The declarations that the package reads from the headers, against what a C compiler makes of them; and that what is not understood is an error."""
import ctypes
import os
import subprocess
import tempfile
import unittest
import unittest.mock

import support

support.need("numpy")
from terse import _library
from terse._header import Declarations

C_TYPES = {
    ctypes.c_bool: "bool", ctypes.c_char: "char", ctypes.c_int: "int", ctypes.c_uint: "unsigned", ctypes.c_float: "float", ctypes.c_double: "double",
    ctypes.c_size_t: "size_t", ctypes.c_char_p: "const char *", ctypes.c_void_p: "void *", ctypes.c_int32: "int32_t", ctypes.c_uint32: "uint32_t",
}


def checks():
    """A C program that compiles where the compiler sees each struct, constant and function as the package does."""
    lines = ["#include <stddef.h>", '#include "terse.h"', '#include "terse_calibrate.h"', '#include "terse_choice.h"']
    for name, value in _library.constants.items():
        lines.append("_Static_assert(%s == %dull, \"%s\");" % (name, value, name))
    for name, struct in _library.structs.items():
        if not getattr(struct, "_fields_", None):
            continue
        lines.append("_Static_assert(sizeof(struct %s) == %d, \"%s\");" % (name, ctypes.sizeof(struct), name))
        for field, _ in struct._fields_:
            place = getattr(struct, field)
            lines.append("_Static_assert(offsetof(struct %s, %s) == %d, \"%s\");" % (name, field, place.offset, field))
            lines.append("_Static_assert(sizeof(((struct %s *)0)->%s) == %d, \"%s\");" % (name, field, place.size, field))
    for name, (result, parameters) in _library.declared.functions.items():
        arguments = ", ".join("*(%s *)0" % spelled(kind) for kind in parameters)
        call = "%s(%s)" % (name, arguments)
        lines.append("void check_%s(void) { %s%s; }" % (name, "" if result is None else "(void)sizeof ", call if result is None else "(%s)" % call))
        if result is not None:
            lines.append("_Static_assert(sizeof(%s) == %d, \"%s\");" % (call, ctypes.sizeof(result), name))
    return "\n".join(lines) + "\n"


def spelled(kind):
    """The C type of an argument. An address (void *) passes for any pointer, as to where C writes strings."""
    if kind in C_TYPES:
        return C_TYPES[kind]
    if hasattr(kind, "contents"):
        inner = spelled(kind._type_)
        return {"const char *": "const char *const *", "void *": "void *"}.get(inner, inner + " *")
    return "struct " + kind.__name__


class Headers(unittest.TestCase):
    def compile(self, text):
        with tempfile.TemporaryDirectory() as folder:
            source = os.path.join(folder, "check.c")
            with open(source, "w", encoding="utf-8") as file:
                file.write(text)
            flags = ["-std=c11", "-Werror=incompatible-pointer-types", "-fsyntax-only", "-I", str(_library.FOLDER)]
            return subprocess.run([os.environ.get("CC", "cc"), *flags, source], stderr=subprocess.PIPE, text=True)

    def test_a_compiler_agrees(self):
        text = checks()
        result = self.compile(text)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertGreater(text.count("_Static_assert"), 250)

    def test_a_compiler_would_disagree(self):
        for field, kind in ("tail_tokens", ctypes.c_uint64), ("method", ctypes.c_char):
            with self.subTest(field=field):
                fields = [(name, kind if name == field else own) for name, own in _library.structs["terse_cache_options"]._fields_]
                wrong = type("terse_cache_options", (ctypes.Structure,), {"_fields_": fields})
                with unittest.mock.patch.dict(_library.structs, terse_cache_options=wrong):
                    self.assertNotEqual(self.compile(checks()).returncode, 0)

    def test_all_functions_of_the_headers_are_declared(self):
        declared = sum((_library.FOLDER / name).read_text(encoding="utf-8").count("\nTERSE_API ") for name in ("terse.h", "terse_calibrate.h", "terse_choice.h"))
        self.assertEqual(len(_library.declared.functions), declared)

    def test_what_is_not_understood_is_an_error(self):
        for text in "union u { int a; };", "int terse_x(long double y);", "struct s { int a : 3; };", "typedef int t;":
            with self.subTest(text=text), self.assertRaises((ValueError, KeyError)):
                Declarations().read(text)


if __name__ == "__main__":
    support.main()

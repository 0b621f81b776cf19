"""Runs a program as the body of a function, so that a `return` outside its functions ends it; APPS's and
LiveCodeBench's harnesses do the same. Its names stay global.
"""

import ast
import sys

FUNCTION = "the program as a function"


def as_function(text):
    body = ast.parse(text, "main.py").body
    # These stand at the top of a module only, and bind their names there.
    above = [node for node in body if is_future(node) or is_star(node)]
    function = ast.parse("def f(): pass").body[0]
    function.name = FUNCTION
    function.body = [plain(node) for node in body if node not in above] or function.body
    module = ast.fix_missing_locations(ast.Module([*above, function], []))
    compiled = compile(module, "main.py", "exec", dont_inherit=True)
    inner = next(part for part in compiled.co_consts if getattr(part, "co_name", None) == FUNCTION)
    if bound := inner.co_varnames + inner.co_cellvars:
        function.body.insert(0, ast.Global(list(bound)))
    return compile(ast.fix_missing_locations(module), "main.py", "exec", dont_inherit=True)


def is_future(node):
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def is_star(node):
    return isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names)


class Plain(ast.NodeTransformer):
    """Assignments without their annotations, which a global name cannot have in a function."""

    def visit_AnnAssign(self, node):
        if not isinstance(node.target, ast.Name):
            return node
        new = ast.Assign([node.target], node.value) if node.value else ast.Pass()
        return ast.copy_location(new, node)

    def visit_FunctionDef(self, node):
        return node

    visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = visit_FunctionDef


def plain(node):
    return Plain().visit(node)


def main():
    path = sys.argv[1]
    with open(path, encoding="utf-8") as file:
        code = as_function(file.read())
    sys.argv = [path]
    scope = {"__name__": "__main__", "__builtins__": __builtins__}
    exec(code, scope)
    scope[FUNCTION]()


main()

"""Makes a proxy of Go modules, as files, out of the folder of one module: `go_proxy.py FOLDER... PROXY`.

The first of the folders that is there is taken: each registry of cargo has one.

The layout is that of https://go.dev/ref/mod#goproxy-protocol. The version is the one that the kit's `go.mod` requires.
"""

import json
import pathlib
import sys
import zipfile

*folders, proxy = map(pathlib.Path, sys.argv[1:])
folder = next(folder for folder in folders if folder.is_dir())
template = pathlib.Path(__file__).parents[2] / "guest/templates/go/go.mod.txt"
name, version = template.read_text().split("require ")[1].split()
into = proxy / name / "@v"
into.mkdir(parents=True, exist_ok=True)
(into / f"{version}.info").write_text(json.dumps({"Version": version}))
(into / f"{version}.mod").write_bytes((folder / "go.mod").read_bytes())
with zipfile.ZipFile(into / f"{version}.zip", "w") as module:
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            module.write(file, f"{name}@{version}/{file.relative_to(folder)}")

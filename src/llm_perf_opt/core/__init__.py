"""Result types, the manifest, the stage contract and the one module that starts other programs."""

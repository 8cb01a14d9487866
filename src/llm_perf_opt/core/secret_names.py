"""Which names of environment variables look like secrets; one rule for what children get and what reports may hold."""

import re

# nsys and ncu mark the processes they watch with session ids and tokens of their own, which are no secrets.
_OF_THE_TOOLS = r"NSYS_|NV_TPS_|NV_NSIGHT_"
_WORDS = (
    r"TOKEN(?!IZ)",  # tokenizers have none
    r"(?<!BY)PASS(?!ES|IVE|THROUGH|_PLUGIN)",  # passes of a compiler have none
    r"AUTH(?!OR(?!I[SZ]))",  # an author is none, an authorization is
    r"_PWD$",
    r"_PAT$",
    *("SECRET", "CREDENTIAL", "KEY", "JWT", "COOKIE", "SESSION_ID"),
)
SECRET_NAME = re.compile(rf"^(?!{_OF_THE_TOOLS}).*({'|'.join(_WORDS)})", re.IGNORECASE)

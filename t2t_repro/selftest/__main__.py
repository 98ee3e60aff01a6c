"""`python -m t2t_repro.selftest`: a child process of the self-test. Users run `t2t-selftest` instead."""

import sys

from t2t_repro.selftest.child import serve

if __name__ == "__main__":
    serve(sys.argv[1:])

"""`python -m smartree`, which is also what torchrun takes: `torchrun --nproc-per-node 2 -m smartree generate ...`."""

from smartree.cli.app import main

if __name__ == "__main__":
    main()

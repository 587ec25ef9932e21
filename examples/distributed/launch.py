"""Start a distributed training; the same as python -m svrg_optimization.launch."""

from svrg_optimization.launch.__main__ import main

if __name__ == '__main__':
    main()

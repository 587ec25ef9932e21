"""What the jobs of tests use of scikit-learn, which MXNet would import whole in each process."""

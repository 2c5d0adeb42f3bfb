"""Several replicas of the server on Ray Serve: `ray_app` has the application, `ray_proxy` a middleware of the proxy."""

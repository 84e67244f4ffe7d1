module tessera.io/steps

go 1.26

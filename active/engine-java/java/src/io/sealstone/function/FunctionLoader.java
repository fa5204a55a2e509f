package io.sealstone.function;

import java.io.ByteArrayInputStream;
import java.io.InputStream;

/** Loads the classes of a function from its JAR file, which is in the memory of the engine. */
final class FunctionLoader extends ClassLoader {
    FunctionLoader() {
        super(ClassLoader.getPlatformClassLoader());
    }

    @Override
    protected Class<?> findClass(String name) throws ClassNotFoundException {
        byte[] code = EngineHost.entry(name.replace('.', '/').concat(".class"));
        if (code == null) {
            throw new ClassNotFoundException(name);
        }
        return defineClass(name, code, 0, code.length);
    }

    @Override
    public InputStream getResourceAsStream(String name) {
        byte[] content = EngineHost.entry(name);
        return content == null ? super.getResourceAsStream(name) : new ByteArrayInputStream(content);
    }
}
